"""Prometheus metrics of pipelines equal the registry, run history and alerts (OBS-1)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.observability.alerts import Alert, raise_alert
from sluice.pipelines.instance import open_instance
from sluice.pipelines.pipeline_metrics import metrics_reader
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import transitions
from sluice.rollout.settings import RolloutSettings
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    promote_chain,
    promotion_receipt,
    record_decision,
    register_sample,
)

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, registry_url=f"sqlite:///{tmp_path / 'registry.db'}")


@pytest.fixture
def ledger(home: Home) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(home.registry_url, clock=Clock()) as opened:
        yield opened


def read_samples(home: Home) -> Samples:
    """Return the values by sample name and label values, without the label ``model``."""
    return {
        (sample.name, tuple(v for k, v in sorted(sample.labels.items()) if k != "model")): (
            sample.value
        )
        for family in text_string_to_metric_families(metrics_reader(home)().decode())
        for sample in family.samples
    }


def test_missing_registry_is_reported_as_down(home: Home) -> None:
    assert read_samples(home) == {("sluice_registry_up", ()): 0}
    assert list(home.root.iterdir()) == []  # reading creates no file


def test_rollout_metrics_follow_its_phases(home: Home, ledger: RolloutLedger) -> None:
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 2)
    two = ledger.version(MODEL, 2).candidate
    number = register_sample(ledger, store, salt=3, reference=two)
    started = ledger.start_rollout(MODEL, number, RolloutSettings(), actor="ada", reason="try")
    rollout = started.rollout
    during = read_samples(home)
    paused = transitions.pause(rollout, now=started.at, actor="ada", reason="look")
    ledger.record_transition(rollout, paused)
    aborted = transitions.abort(paused.rollout, now=started.at, actor="ada", reason="no")
    while_paused = read_samples(home)
    ledger.record_transition(paused.rollout, aborted)
    after = read_samples(home)

    assert during["sluice_registry_up", ()] == 1
    assert during["sluice_production_version", ()] == 2
    assert during["sluice_production_moves_total", ("promote",)] == 2
    assert during["sluice_rollout_phase", ("rolling",)] == 1
    assert during["sluice_rollout_share", ()] == 0.05
    assert during["sluice_rollout_lease_timestamp_seconds", ()] == rollout.lease_until.timestamp()
    assert during["sluice_rollout_patience_timestamp_seconds", ()] == (
        rollout.step_times_out_at.timestamp()
    )
    assert while_paused["sluice_rollout_phase", ("paused",)] == 1
    assert while_paused["sluice_rollout_phase", ("rolling",)] == 0
    assert after["sluice_rollout_phase", ("rolled_back",)] == 1
    assert after["sluice_rollout_ends_total", ("rolled_back",)] == 1
    assert after["sluice_rollout_share", ()] == 0
    assert ("sluice_rollout_lease_timestamp_seconds", ()) not in after


def test_verdicts_are_counted_by_outcome(home: Home, ledger: RolloutLedger) -> None:
    register_sample(ledger, ArtifactStore(home.artifacts), salt=1)
    before = read_samples(home).get(("sluice_verdicts_total", ("REJECT",)), 0)
    for name in ("x", "y"):
        record_decision(ledger, promotion_receipt(name * 64, outcome="REJECT"))

    assert (before, read_samples(home)["sluice_verdicts_total", ("REJECT",)]) == (0, 2)


def test_runs_and_alerts_are_counted(home: Home) -> None:
    @dg.op
    def work(context: dg.OpExecutionContext) -> None:
        if context.run.tags.get("fail"):
            raise RuntimeError("no")

    @dg.job(name="line_training")
    def job() -> None:
        work()

    (home.records / "line").mkdir(parents=True)
    with open_instance(home) as instance:
        for tags in ({}, {}, {"fail": "1"}):
            job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
    for key in ("a", "a", "b"):
        raise_alert(
            Alert(
                key=key,
                kind="drift",
                what="Moved.",
                why="",
                do="",
                severity="warning",
                model=MODEL,
                at=datetime(2026, 3, 1, tzinfo=UTC),
            ),
            home=home,
            environ={},
        )
    found = read_samples(home)

    assert found["sluice_runs", ("training", "line", "success")] == 2
    assert found["sluice_runs", ("training", "line", "failure")] == 1
    failed = found["sluice_last_run_timestamp_seconds", ("training", "line", "failure")]
    assert failed > found["sluice_last_run_timestamp_seconds", ("training", "line", "success")]
    assert 0 <= found["sluice_last_run_seconds", ("training", "line")] < 60
    assert found["sluice_alerts_total", ("drift", "warning")] == 2
    assert found["sluice_last_alert_timestamp_seconds", ("drift", "warning")] == 1772323200
