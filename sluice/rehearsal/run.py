"""Runs a rehearsal from start to end, with the same controller that the sensor calls.

Shape legend: N = rows, O = outputs.
"""

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, GateBlocked, SettingsError
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import ResolvedPipeline
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from sluice.registry.ledger import Ledger
from sluice.registry.records import Version
from sluice.rehearsal.faults import FaultPlan, InjectedFault, inject_fault
from sluice.rehearsal.request_rows import RequestRows, load_request_rows
from sluice.rehearsal.result import Rehearsal, RehearsalEnd, RehearsalSample
from sluice.rehearsal.sandbox import ACTOR, Sandbox, open_sandbox
from sluice.rehearsal.server import ServerConfig
from sluice.rehearsal.server_process import running_server
from sluice.rehearsal.settings import (
    MAX_SECONDS,
    MIN_SECONDS,
    RATE_PER_S,
    RECONCILE_INTERVAL_S,
    shorten_intervals,
    shorten_steps,
)
from sluice.rehearsal.traffic import RequestCounts, TrafficGenerator
from sluice.rollout.prediction_agreement import PredictionAgreement, measure_agreement
from sluice.rollout.samples import ServerState
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.controller import live_servers, try_reconcile
from sluice.rollout_control.quality import evaluate_live_quality
from sluice.rollout_control.status import RolloutStatus, read_status
from sluice.rollout_control.view import describe_drift
from sluice.serving.deployed import DeployedModel, load_deployed, predict_rows
from sluice.serving.server import bind_socket
from sluice.serving.split_sync import LOADING_PROBLEM
from sluice.workloads.workload import Workload

OnSample = Callable[[RolloutStatus, RequestCounts, str], None]
"""Function that is called after each check with the status, the request counts, and a text on the
distance between the predictions of both arms."""

_BATCH_ROWS = 256
"""Number of rows in a batch of predictions."""
_WARM_UP_S = 0.5
"""Duration of the traffic to production alone, before the rollout starts [s]."""
_MAX_SYNC_S = 15.0
"""Maximum wait, after the end of the rollout, for the server to apply the final split [s]."""
_COOL_DOWN_S = 1.0
"""Duration of the traffic after the server has applied the final split [s]. Failed requests in this
time are deviations, too."""
_LOAD_ALLOWANCE_S = 60.0
"""Time that is added to the time limits of the rehearsal and of each step [s]. On a busy machine it
is needed to load the challenger and to restart it after crashes. With the fault ``no_traffic`` the
rollout ends by the timeout of the step, so nothing is added to the time limit of steps."""
_NUM_LABEL_BATCHES = 24
"""Number of times that the promotion gate gets new labels within the planned duration."""


def rehearse(
    pipeline: ResolvedPipeline,
    ledger: Ledger,
    store: ArtifactStore,
    *,
    fault: InjectedFault,
    seconds: float,
    seed: int,
    port: int,
    on_sample: OnSample,
) -> Rehearsal:
    """Roll out a clone of the production version in a sandbox, with an injected fault.

    Args:
        pipeline: Pipeline of the model; its gate, serving and rollout settings apply, with
            shorter steps.
        ledger: The real registry, which is only read.
        store: The real artifact store, which is only read.
        fault: Fault that is injected into the clone.
        seconds: Planned duration of a rollout without a fault [s].
        seed: Seeds the users and the inputs that the fault affects.
        port: Port of the server; 0 takes a free port.
        on_sample: Function that is called after each check.

    Raises:
        GateBlocked: No version is in production, or its receipts would not allow its promotion
            today.
        SettingsError: The seconds are out of range, the port is taken, or the server cannot start.
        StorageError: The server does not report its port, or a registry cannot be read or written.
        IntegrityError: An artifact of the version is missing or changed.
        CodeMismatch, UntrustedCode: The version cannot be loaded by the code of this process.
        SourceError: The rows cannot be read.
        ContractError: The version cannot be rehearsed: it has one seed, its workload cannot be
            imported, or there are too few held-out rows.

    Cost:
        Two processes, for up to about twice ``seconds`` plus a minute. The requests use most of two
        cores.
    """
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise SettingsError(
            f"A rehearsal must take {MIN_SECONDS:g} to {MAX_SECONDS:g} seconds, got {seconds:g}.",
            fix=f"Give --seconds 60. With fewer than {MIN_SECONDS:g}, no step gets enough "
            "requests.",
        )
    settings = pipeline.settings
    production = ledger.production(settings.name)
    if production is None:
        raise GateBlocked(
            f"{settings.name} has no version in production to rehearse with.",
            fix=f"Run: sluice run {settings.name}",
        )
    bind_socket("127.0.0.1", port).close()  # report a port in use before starting anything
    rows = load_request_rows(production, pipeline.workload)
    if fault == "quality":
        _require_labels(rows, settings.gate.min_rows)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-rehearsal-") as folder,
        open_sandbox(ledger, production, store, folder=Path(folder), clock=_now) as sandbox,
    ):
        plan, agreement = _plan_fault(sandbox, rows, fault=fault, seed=seed)
        config = ServerConfig(
            registry_url=sandbox.home.registry_url,
            artifacts=str(sandbox.home.artifacts),
            model=settings.name,
            port=port,
            serving=shorten_intervals(settings.serving),
            plan=plan,
            log=str(Path(folder) / "server.log"),
        )
        with running_server(config) as wait_for_port:
            _warm_up()
            traffic = TrafficGenerator(
                rows,
                wait_for_port(),
                rate_per_s=0.0 if fault == "no_traffic" else RATE_PER_S,
                seconds=_WARM_UP_S + seconds,
                seed=seed,
            )
            run = _RehearsalRun(
                sandbox=sandbox,
                settings=settings,
                workload=pipeline.workload,
                rows=rows,
                traffic=traffic,
                seconds=seconds,
                step_timeout_s=seconds / 2
                if fault == "no_traffic"
                else seconds + _LOAD_ALLOWANCE_S,
                on_sample=on_sample,
            )
            with traffic:
                run.run_rollout(agreement)
        return run.result(production, fault=fault, seed=seed)


def _require_labels(rows: RequestRows, min_labels: int) -> None:
    """Require at least ``min_labels`` rows in the first three quarters of the held-out rows.

    The labels of the last quarter may arrive after the last decision.

    Raises:
        ContractError: There are too few rows.
    """
    num_labelled = int(0.75 * len(rows.keys))
    if num_labelled < min_labels:
        raise ContractError(
            f"To detect a worse model from labels, the promotion gate needs {min_labels} rows "
            f"(gate.min_rows), but only about {num_labelled} of {len(rows.keys)} held-out rows "
            "get their labels before its last decision.",
            fix="Rehearse another fault, or give the pipeline more rows.",
        )


def _warm_up() -> None:
    """Compare dummy losses once before the traffic: imports and compilation take seconds."""
    rng = np.random.default_rng(0)

    def losses() -> LossTable:
        return LossTable(
            subject="",
            window="",
            seeds=tuple(range(5)),
            fold_N=np.zeros(300, np.int64),
            label_N=np.array([f"{row:03d}" for row in range(300)]),
            loss_SN=rng.random((5, 300)),
        )

    losses().to_frame().to_parquet()
    compare(losses(), losses(), GateSettings(), horizon_rows=1, unit="")


def _now() -> datetime:
    return datetime.now(UTC)


def _plan_fault(
    sandbox: Sandbox, rows: RequestRows, *, fault: InjectedFault, seed: int
) -> tuple[FaultPlan, PredictionAgreement]:
    """Return the fault plan, and the distance between both models' predictions on held-out rows.

    The challenger is evaluated with the fault ``quality``, because a worse model is worse on
    held-out rows, too. It is evaluated without the other faults, which occur only in serving.
    """
    challenger = load_deployed(sandbox.challenger, sandbox.store)
    production_NO = _predict_all(load_deployed(sandbox.production, sandbox.store), rows)
    plan = FaultPlan(
        fault=fault,
        challenger=sandbox.challenger.candidate,
        seed=seed,
        spread=tuple(production_NO.std(axis=0).tolist()),
    )
    evaluated_model = inject_fault(challenger, plan) if fault == "quality" else challenger
    return plan, measure_agreement(production_NO, _predict_all(evaluated_model, rows))


def _predict_all(deployed: DeployedModel, rows: RequestRows) -> NDArray[np.float64]:
    """Return the model's predictions (N, O) for all rows."""
    return predict_rows(deployed, rows.x, range(len(rows.x)), batch_rows=_BATCH_ROWS)


@dataclass(slots=True, kw_only=True)
class _RehearsalRun:
    """A rehearsal in progress: its objects, its settings and the observations so far."""

    sandbox: Sandbox
    settings: PipelineSettings
    workload: Workload
    rows: RequestRows
    traffic: TrafficGenerator
    seconds: float
    step_timeout_s: float
    on_sample: OnSample
    samples: list[RehearsalSample] = field(default_factory=list)
    problems: tuple[str, ...] = ()
    sync_delay_s: float | None = None
    next_labels_at: float = 0.0
    """Time at which the promotion gate runs again [s, monotonic]."""

    ended_at: datetime | None = None
    """Time at which the rollout ended or the time limit of the rehearsal was reached."""

    def run_rollout(self, agreement: PredictionAgreement) -> None:
        """Start the rollout, reconcile it until it ends, and wait for the server."""
        time.sleep(_WARM_UP_S)
        ledger, model = self.sandbox.ledger, self.settings.name
        ledger.start_rollout(
            model,
            self.sandbox.challenger.number,
            shorten_steps(
                self.settings.rollout, seconds=self.seconds, step_timeout_s=self.step_timeout_s
            ),
            actor=ACTOR,
            reason="A rehearsal.",
            agreement=agreement,
        )
        deadline = time.monotonic() + 2 * self.seconds + _LOAD_ALLOWANCE_S
        next_check_at = time.monotonic()
        while time.monotonic() < deadline:
            next_check_at = max(next_check_at + RECONCILE_INTERVAL_S, time.monotonic())
            time.sleep(max(0.0, next_check_at - time.monotonic()))
            if self._reconcile():
                break
        self.ended_at = _now()
        self._wait_for_server()
        time.sleep(_COOL_DOWN_S)
        self.traffic.stop()
        self._report_status(None)

    def _reconcile(self) -> bool:
        """Check the rollout once; return whether it is over or paused."""
        self._evaluate_labels()
        ledger, model = self.sandbox.ledger, self.settings.name
        transition = try_reconcile(ledger, model, now=_now())
        if transition is None:
            return False
        self._record_sample(transition)
        if transition.rollout.phase == "awaiting_promotion":
            transition = ledger.finish_rollout(model, actor=ACTOR, store=self.sandbox.store)
        self._report_status(transition)
        return transition.rollout.is_over or transition.rollout.phase == "paused"

    def _evaluate_labels(self) -> None:
        """Run the promotion gate on the requested rows whose labels have arrived, if it is time."""
        if time.monotonic() < self.next_labels_at:
            return
        self.next_labels_at = time.monotonic() + self.seconds / _NUM_LABEL_BATCHES
        frame = self.rows.labelled_frame(self.traffic.counts.max_index)
        evaluate_live_quality(
            self.sandbox.ledger,
            self.settings.name,
            self.workload,
            self.settings.gate,
            self.sandbox.store,
            frame,
            _now(),
        )

    def _record_sample(self, transition: Transition) -> None:
        rollout, counts, drift = transition.rollout, transition.window, transition.drift
        if counts is None:
            return
        is_measured = drift is not None and not math.isnan(drift.distance)
        self.samples.append(
            RehearsalSample(
                at_s=(transition.at - rollout.started_at).total_seconds(),
                share=rollout.share,
                step=rollout.step,
                challenger=counts.challenger.requests,
                production=counts.production.requests,
                evidence={reading.guard: reading.evidence for reading in transition.guards},
                distance=drift.distance if drift is not None and is_measured else None,
            )
        )

    def _report_status(self, transition: Transition | None) -> None:
        status = read_status(self.sandbox.ledger, self.settings.name, now=_now())
        self.problems = merge_problems(self.problems, status.servers)
        drift = None if transition is None else transition.drift
        self.on_sample(status, self.traffic.counts, "" if drift is None else describe_drift(drift))

    def _wait_for_server(self) -> None:
        """Wait until the server has applied the final split, but at most ``_MAX_SYNC_S``."""
        ledger, model = self.sandbox.ledger, self.settings.name
        started_at = time.monotonic()
        split, production = ledger.traffic_split(model), ledger.production_number(model)
        assert split is not None, "the sandbox has a production version"
        while time.monotonic() - started_at < _MAX_SYNC_S:
            servers = live_servers(ledger, model, now=_now())
            if servers and all(
                (s.epoch, s.production) == (split.epoch, production) for s in servers
            ):
                self.sync_delay_s = time.monotonic() - started_at
                return
            time.sleep(0.05)

    def result(self, production: Version, *, fault: InjectedFault, seed: int) -> Rehearsal:
        """Return the result."""
        ledger = self.sandbox.ledger
        rollout = ledger.rollout(self.settings.name)
        assert rollout is not None, "the rollout was started"
        transitions = ledger.rollout_transitions(rollout.id)
        last_transition, counts = transitions[-1], self.traffic.counts
        status = read_status(ledger, self.settings.name, now=_now())
        return Rehearsal(
            model=self.settings.name,
            version=production.number,
            fault=fault,
            seed=seed,
            seconds=self.seconds,
            started_at=rollout.started_at,
            held_out_rows=len(self.rows.keys),
            ended=_rehearsal_end(rollout),
            reason=last_transition.reason,
            duration_s=_duration_s(
                rollout, last_transition_at=last_transition.at, ended_at=self.ended_at
            ),
            sync_delay_s=self.sync_delay_s,
            sent=counts.num_sent,
            answered=counts.num_answered,
            failed=counts.num_failed,
            failure=counts.first_error,
            problems=self.problems,
            limits={reading.guard: reading.limit for reading in status.guards},
            drift_limit=rollout.settings.max_disagreement,
            transitions=tuple(transitions),
            samples=tuple(self.samples),
        )


def merge_problems(
    earlier_problems: Sequence[str], servers: Sequence[ServerState]
) -> tuple[str, ...]:
    """Return the problems that servers reported, each once.

    ``LOADING_PROBLEM`` is removed once no server reports it.
    """
    current_problems = [problem for server in servers for problem in server.problems]
    problems = dict.fromkeys([*earlier_problems, *current_problems])
    return tuple(
        problem for problem in problems if problem != LOADING_PROBLEM or problem in current_problems
    )


def _duration_s(
    rollout: Rollout, *, last_transition_at: datetime, ended_at: datetime | None
) -> float:
    """Return the time from the rollout's start to its end, or to the rehearsal's time limit [s]."""
    has_timed_out = _rehearsal_end(rollout) == "timed_out"
    end_time = ended_at if has_timed_out and ended_at is not None else last_transition_at
    return (end_time - rollout.started_at).total_seconds()


def _rehearsal_end(rollout: Rollout) -> RehearsalEnd:
    match rollout.phase:
        case "promoted" | "rolled_back" | "paused":
            return rollout.phase
        case "rolling" | "awaiting_promotion":
            return "timed_out"
