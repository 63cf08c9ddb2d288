"""Prometheus metrics of pipelines, rollouts and alerts, collected on each scrape.

All values are read from the registry, Dagster's run history and the file of alerts, so a restart
does not reset any counter.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.base.errors import SluiceError
from sluice.base.home import Home
from sluice.observability.alerts import read_alerts
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import RolloutPhase

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CACHE_S = 5.0
"""Time for which the metrics are cached [s]. Each scrape would read several databases."""

_JOBS = ("training", "search", "promotion", "registry_verification")
"""Jobs whose runs are counted; the name of the pipeline precedes each of these names."""


def metrics_reader(home: Home) -> Callable[[], bytes]:
    """Return a thread-safe function that returns the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_LedgerCollector(home))
    registry.register(_RunCollector(home))
    registry.register(_AlertCollector(home))
    lock = threading.Lock()
    cached, cached_at = b"", float("-inf")

    def read() -> bytes:
        nonlocal cached, cached_at
        with lock:
            if time.monotonic() - cached_at > _CACHE_S:
                cached, cached_at = generate_latest(registry), time.monotonic()
            return cached

    return read


class _LedgerCollector(Collector):
    """Collects the versions, verdicts, production changes and last rollout of each model."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def describe(self) -> Iterable[Metric]:
        """Return no metric before the first scrape: the registry may not exist yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read the registry."""
        up = GaugeMetricFamily("sluice_registry_up", "1 when the registry could be read.")
        findings = GaugeMetricFamily(
            "sluice_registry_findings",
            "Inconsistencies of the registry concerning production; 0 when it is consistent.",
            labels=("model",),
        )
        families = _ledger_families()
        try:
            with RolloutLedger.open(
                self._home.registry_url, clock=lambda: datetime.now(UTC), create=False
            ) as ledger:
                models = ledger.models()
                # First the findings: _add_model_metrics raises an error for a damaged registry.
                for model in models:
                    findings.add_metric((model,), len(ledger.production_findings(model)))
                for model in models:
                    _add_model_metrics(families, ledger, model)
        except SluiceError:
            up.add_metric((), 0)
            yield up
            yield from [findings] if findings.samples else []
            return
        up.add_metric((), 1)
        yield up
        yield findings
        yield from families.values()


def _ledger_families() -> dict[str, Metric]:
    gauges = {
        "production_version": ("Version number in production; 0 for none.", ("model",)),
        "versions": ("Versions by state.", ("model", "state")),
        "production_since_timestamp_seconds": (
            "Time of the last change of production.",
            ("model",),
        ),
        "rollout_phase": ("1 for the phase of the model's last rollout.", ("model", "phase")),
        "rollout_version": ("Version number of the challenger.", ("model",)),
        "rollout_step": ("Index of the rollout step, from 0.", ("model",)),
        "rollout_share": (
            "Share of users that the rollout sends to the challenger; 0 after its end.",
            ("model",),
        ),
        "rollout_step_since_timestamp_seconds": ("Start time of the rollout step.", ("model",)),
        "rollout_patience_timestamp_seconds": (
            "Time at which the rollout pauses, unless its step has passed by then.",
            ("model",),
        ),
        "rollout_lease_timestamp_seconds": (
            "Time at which servers return to production unless the lease is renewed.",
            ("model",),
        ),
    }
    counters = {
        "verdicts": ("Decisions of the promotion gate.", ("model", "outcome")),
        "production_moves": ("Changes of the production pointer.", ("model", "action")),
        "rollout_ends": ("Rollouts that have ended, by phase.", ("model", "phase")),
    }
    families: dict[str, Metric] = {
        name: GaugeMetricFamily(f"sluice_{name}", text, labels=label_names)
        for name, (text, label_names) in gauges.items()
    }
    families |= {
        name: CounterMetricFamily(f"sluice_{name}", text, labels=label_names)
        for name, (text, label_names) in counters.items()
    }
    return families


def _add_model_metrics(families: dict[str, Metric], ledger: RolloutLedger, model: str) -> None:
    def add(name: str, value: float, *label_values: str) -> None:
        family = families[name]
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        family.add_metric((model, *label_values), value)

    add("production_version", ledger.production_number(model) or 0)
    for state, count in Counter(version.state for version in ledger.versions(model)).items():
        add("versions", count, state)
    for outcome, count in Counter(r.outcome for r in ledger.decisions(model)).items():
        add("verdicts", count, outcome)
    moves = [entry for entry in ledger.history(model) if entry.revision is not None]
    for action in ("promote", "rollback"):
        add("production_moves", sum(move.action == action for move in moves), action)
    if moves:
        add("production_since_timestamp_seconds", moves[-1].at.timestamp())
    num_rollouts_by_phase = Counter(
        ledger.rollout_transitions(rollout_id)[-1].rollout.phase
        for rollout_id in ledger.rollout_ids(model)
    )
    for phase in ("promoted", "rolled_back"):
        add("rollout_ends", num_rollouts_by_phase[phase], phase)
    rollout = ledger.rollout(model)
    if rollout is None:
        return
    for phase in get_args(RolloutPhase):
        add("rollout_phase", float(rollout.phase == phase), phase)
    add("rollout_version", rollout.version)
    add("rollout_share", rollout.share)
    if not rollout.is_over:
        add("rollout_step", rollout.step)
        add("rollout_step_since_timestamp_seconds", rollout.step_since.timestamp())
        add("rollout_patience_timestamp_seconds", rollout.step_times_out_at.timestamp())
        add("rollout_lease_timestamp_seconds", rollout.lease_until.timestamp())


class _RunCollector(Collector):
    """Collects each pipeline's runs of the jobs in ``_JOBS`` from Dagster's history."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def describe(self) -> Iterable[Metric]:
        """Return no metric before the first scrape: no run may exist yet."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Read Dagster's run history."""
        runs = GaugeMetricFamily(
            "sluice_runs", "Runs in Dagster's history.", labels=("pipeline", "job", "status")
        )
        end_times = GaugeMetricFamily(
            "sluice_last_run_timestamp_seconds",
            "End time of the last run with this status.",
            labels=("pipeline", "job", "status"),
        )
        durations = GaugeMetricFamily(
            "sluice_last_run_seconds",
            "Duration of the last run that ended [s].",
            labels=("pipeline", "job"),
        )
        if (self._home.dagster / "dagster.yaml").exists():
            self._add_runs(runs, end_times, durations)
        yield from (runs, end_times, durations)

    def _add_runs(
        self, runs: GaugeMetricFamily, end_times: GaugeMetricFamily, durations: GaugeMetricFamily
    ) -> None:
        import dagster as dg

        from sluice.pipelines.instance import open_instance

        pipelines = sorted(p.name for p in self._home.records.glob("*") if p.is_dir())
        statuses = {
            "success": dg.DagsterRunStatus.SUCCESS,
            "failure": dg.DagsterRunStatus.FAILURE,
            "canceled": dg.DagsterRunStatus.CANCELED,
            "started": dg.DagsterRunStatus.STARTED,
            "queued": dg.DagsterRunStatus.QUEUED,
        }
        with open_instance(self._home) as instance:
            for pipeline in pipelines:
                for job in _JOBS:
                    ended_runs = []
                    for status_name, status in statuses.items():
                        run_filter = dg.RunsFilter(job_name=f"{pipeline}_{job}", statuses=[status])
                        runs.add_metric(
                            (pipeline, job, status_name), instance.get_runs_count(run_filter)
                        )
                        for record in instance.get_run_records(run_filter, limit=1):
                            if record.end_time is None or record.start_time is None:
                                continue
                            end_times.add_metric((pipeline, job, status_name), record.end_time)
                            ended_runs.append(
                                (record.end_time, record.end_time - record.start_time)
                            )
                    if ended_runs:
                        durations.add_metric((pipeline, job), max(ended_runs)[1])


class _AlertCollector(Collector):
    """Collects the alerts raised by Sluice, drift included."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def collect(self) -> Iterable[Metric]:
        """Read the file of alerts."""
        label_names = ("model", "kind", "severity")
        num_alerts = CounterMetricFamily("sluice_alerts", "Alerts raised.", labels=label_names)
        last_alert_times = GaugeMetricFamily(
            "sluice_last_alert_timestamp_seconds", "Time of the last alert.", labels=label_names
        )
        alerts = read_alerts(self._home)
        for label_values in sorted({(a.model, a.kind, a.severity) for a in alerts}):
            times = [
                a.at.timestamp() for a in alerts if (a.model, a.kind, a.severity) == label_values
            ]
            num_alerts.add_metric(label_values, len(times))
            last_alert_times.add_metric(label_values, max(times))
        yield from (num_alerts, last_alert_times)
