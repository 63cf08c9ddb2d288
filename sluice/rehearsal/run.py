"""A rehearsal from its start to its end, driven by the very look that the sensor takes (ROLL-2).

Shape legend: N = windows, O = outputs.
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
from sluice.evaluation.comparison import compare
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings
from sluice.registry.ledger import Ledger
from sluice.registry.records import Version
from sluice.rehearsal.faults import Fault, Plan, plant
from sluice.rehearsal.replay import Replay, open_replay
from sluice.rehearsal.result import End, Moment, Rehearsal
from sluice.rehearsal.sandbox import ACTOR, Sandbox, open_sandbox
from sluice.rehearsal.server import Order
from sluice.rehearsal.server_process import starting_server
from sluice.rehearsal.settings import (
    FEWEST_SECONDS,
    LOOK_S,
    MOST_SECONDS,
    RATE_PER_S,
    quicker,
    shortened,
)
from sluice.rehearsal.traffic import Counts, Traffic
from sluice.rollout.agreement import Agreement, measure_agreement
from sluice.rollout.samples import ServerState
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.drive import live_servers, try_drive
from sluice.rollout_control.quality import note_quality_of
from sluice.rollout_control.standing import Standing, read_standing
from sluice.rollout_control.view import drift_words
from sluice.serving.deployed import Deployed, load_deployed
from sluice.serving.following import LOADING
from sluice.serving.server import listen

Tell = Callable[[Standing, Counts, str], None]
"""Hears of each look: where the rollout stands, the traffic, how far the predictions are."""

_BATCH = 256
_WARM_S = 0.5
"""Traffic of production alone; it goes on while the challenger's process loads."""
_FOLLOW_S = 15.0
_AFTER_S = 1.0
"""Traffic after the end: the swap must not fail a request either."""
_BUSY_S = 60.0
"""What a busy machine may add: to load the challenger, above all, and to start anew after crashes.
When nobody asks anything, patience may end sooner, as it is all that there is to wait for."""
_LABELS = 24
"""How many times in a rehearsal labels arrive."""


def rehearse(
    pipeline: PipelineSettings,
    ledger: Ledger,
    store: ArtifactStore,
    *,
    fault: Fault,
    seconds: float,
    seed: int,
    port: int,
    tell: Tell,
) -> Rehearsal:
    """Bring a twin of what is in production into the production of a sandbox, with a fault.

    Args:
        pipeline: Whose model; its gate, its serving and its rollout apply, with shorter steps.
        ledger: The real registry, which is only read.
        store: The real store, which is only read.
        fault: Planted in the twin.
        seconds: What a healthy rollout should need at most [s].
        seed: Draws users and the windows that the fault hits.
        port: Of the server; 0 takes a free one.
        tell: Hears of each look.

    Raises:
        GateBlocked: Nothing is in production.
        SettingsError: The seconds are out of range, or the port is taken.
        SourceError: The rows cannot be read.
        ContractError: The version cannot be rehearsed: one seed alone, or too few held-out rows.

    Cost:
        Two processes, up to about twice ``seconds``; requests need most of two cores.
    """
    if not FEWEST_SECONDS <= seconds <= MOST_SECONDS:
        raise SettingsError(
            f"A rehearsal takes {FEWEST_SECONDS:g} to {MOST_SECONDS:g} seconds, got {seconds:g}.",
            fix=f"Give --seconds 60: with fewer than {FEWEST_SECONDS:g}, no step sees enough "
            "requests.",
        )
    production = ledger.production(pipeline.name)
    if production is None:
        raise GateBlocked(
            f"{pipeline.name} has nothing in production that could be rehearsed with.",
            fix=f"Run: sluice run {pipeline.name}",
        )
    listen("127.0.0.1", port).close()  # a port that is taken is told before anything is started
    replay = open_replay(production, pipeline)
    if fault == "quality":
        _require_labels(replay, pipeline)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-rehearsal-") as folder,
        open_sandbox(ledger, production, store, folder=Path(folder), clock=_now) as sandbox,
    ):
        plan, agreement = _plan(sandbox, replay, fault=fault, seed=seed)
        order = Order(
            registry_url=sandbox.home.registry_url,
            artifacts=str(sandbox.home.artifacts),
            model=pipeline.name,
            port=port,
            serving=quicker(pipeline.serving),
            plan=plan,
            log=str(Path(folder) / "server.log"),
        )
        with starting_server(order) as port_of:
            _warm_up()
            traffic = Traffic(
                replay,
                port_of(),
                per_s=0.0 if fault == "silence" else RATE_PER_S,
                seconds=_WARM_S + seconds,
                seed=seed,
            )
            stage = _Stage(
                sandbox=sandbox,
                pipeline=pipeline,
                replay=replay,
                traffic=traffic,
                seconds=seconds,
                patience_s=seconds / 2 if fault == "silence" else seconds + _BUSY_S,
                tell=tell,
            )
            with traffic:
                stage.play(agreement)
        return stage.result(production, fault=fault, seed=seed)


def _require_labels(replay: Replay, pipeline: PipelineSettings) -> None:
    """The last quarter may pass without a look of the gate's: the rest has to be enough for it."""
    labelled, needed = int(0.75 * len(replay.keys)), pipeline.gate.min_rows
    if labelled < needed:
        raise ContractError(
            f"To see a worse model by its labels the gate needs {needed} rows (gate.min_rows), and "
            f"of {len(replay.keys)} held-out rows about {labelled} get theirs in time.",
            fix="Rehearse another fault, or give the pipeline more rows.",
        )


def _warm_up() -> None:
    """Judge losses of nothing once: what is imported and compiled would take seconds of traffic."""
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


def _plan(sandbox: Sandbox, replay: Replay, *, fault: Fault, seed: int) -> tuple[Plan, Agreement]:
    """Return the plan of the fault, and how far apart both models are on the held-out rows.

    A worse model is worse on those as well; every other fault is not in what was evaluated.
    """
    ours = load_deployed(sandbox.challenger, sandbox.store)
    theirs_NO = _answers(load_deployed(sandbox.production, sandbox.store), replay)
    plan = Plan(
        fault=fault,
        challenger=sandbox.challenger.candidate,
        seed=seed,
        spread=tuple(theirs_NO.std(axis=0).tolist()),
    )
    evaluated = plant(ours, plan) if fault == "quality" else ours
    return plan, measure_agreement(theirs_NO, _answers(evaluated, replay))


def _answers(deployed: Deployed, replay: Replay) -> NDArray[np.float64]:
    """Return the model's answers (N, O) to all windows."""
    x = replay.x_NLD
    starts = range(0, len(x), _BATCH)
    return np.concatenate(
        [deployed.predict(x[at : at + _BATCH], None).mean(axis=0) for at in starts]
    )


@dataclass(slots=True, kw_only=True)
class _Stage:
    """One performance: what it works on, and what was seen so far."""

    sandbox: Sandbox
    pipeline: PipelineSettings
    replay: Replay
    traffic: Traffic
    seconds: float
    patience_s: float
    tell: Tell
    moments: list[Moment] = field(default_factory=list)
    problems: tuple[str, ...] = ()
    followed_s: float | None = None
    labels_at: float = 0.0

    def play(self, agreement: Agreement) -> None:
        """Start the rollout, look at it until it settles, and see the server follow."""
        time.sleep(_WARM_S)
        ledger, model = self.sandbox.ledger, self.pipeline.name
        ledger.start_rollout(
            model,
            self.sandbox.challenger.number,
            shortened(self.pipeline.rollout, seconds=self.seconds, patience_s=self.patience_s),
            actor=ACTOR,
            reason="A rehearsal.",
            agreement=agreement,
        )
        late = time.monotonic() + 2 * self.seconds + _BUSY_S
        due = time.monotonic()
        while time.monotonic() < late:
            due = max(due + LOOK_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            if self._look():
                break
        self._follow()
        time.sleep(_AFTER_S)
        self.traffic.stop()
        self._show(None)

    def _look(self) -> bool:
        """Take one look; True once nothing more can happen by itself."""
        self._judge_labels()
        ledger, model = self.sandbox.ledger, self.pipeline.name
        transition = try_drive(ledger, model, now=_now())
        if transition is None:
            return False
        self._note(transition)
        if transition.rollout.phase == "held":
            transition = ledger.finish_rollout(model, actor=ACTOR, store=self.sandbox.store)
        self._show(transition)
        return transition.rollout.is_over or transition.rollout.phase == "paused"

    def _judge_labels(self) -> None:
        """Labels arrive as the bars pass, late by the horizon."""
        if time.monotonic() < self.labels_at:
            return
        self.labels_at = time.monotonic() + self.seconds / _LABELS
        frame = self.replay.labelled(self.traffic.counts.place)
        note_quality_of(self.sandbox.ledger, self.pipeline, self.sandbox.store, frame, _now())

    def _note(self, transition: Transition) -> None:
        rollout, window, drift = transition.rollout, transition.window, transition.drift
        if window is None:
            return
        known = drift is not None and not math.isnan(drift.distance)
        self.moments.append(
            Moment(
                at_s=(transition.at - rollout.started_at).total_seconds(),
                share=rollout.share,
                step=rollout.step,
                challenger=window.challenger.requests,
                production=window.production.requests,
                evidence={reading.guard: reading.evidence for reading in transition.guards},
                distance=drift.distance if drift is not None and known else None,
            )
        )

    def _show(self, transition: Transition | None) -> None:
        standing = read_standing(self.sandbox.ledger, self.pipeline.name, now=_now())
        self.problems = problems_so_far(self.problems, standing.servers)
        drift = None if transition is None else transition.drift
        self.tell(standing, self.traffic.counts, "" if drift is None else drift_words(drift))

    def _follow(self) -> None:
        """Wait until the server has in force what the rollout's end says."""
        ledger, model = self.sandbox.ledger, self.pipeline.name
        began = time.monotonic()
        weights, production = ledger.weights(model), ledger.production_number(model)
        assert weights is not None, "production stays"
        while time.monotonic() - began < _FOLLOW_S:
            servers = live_servers(ledger, model, now=_now())
            if servers and all(
                (s.epoch, s.production) == (weights.epoch, production) for s in servers
            ):
                self.followed_s = time.monotonic() - began
                return
            time.sleep(0.05)

    def result(self, production: Version, *, fault: Fault, seed: int) -> Rehearsal:
        """Return how it went."""
        ledger = self.sandbox.ledger
        rollout = ledger.rollout(self.pipeline.name)
        assert rollout is not None, "it was started"
        transitions = ledger.rollout_transitions(rollout.id)
        last, counts = transitions[-1], self.traffic.counts
        standing = read_standing(ledger, self.pipeline.name, now=_now())
        return Rehearsal(
            model=self.pipeline.name,
            version=production.number,
            fault=fault,
            seed=seed,
            seconds=self.seconds,
            began_at=rollout.started_at,
            held_out_rows=len(self.replay.keys),
            ended=_end(rollout),
            reason=last.reason,
            remedy=last.remedy,
            settled_s=(last.at - rollout.started_at).total_seconds(),
            followed_s=self.followed_s,
            sent=counts.sent,
            answered=counts.answered,
            failed=counts.failed,
            failure=counts.problem,
            problems=self.problems,
            limits={reading.guard: reading.limit for reading in standing.guards},
            drift_limit=rollout.settings.max_disagreement,
            transitions=tuple(transitions),
            moments=tuple(self.moments),
        )


def problems_so_far(before: Sequence[str], servers: Sequence[ServerState]) -> tuple[str, ...]:
    """Return what servers said was wrong, each once; a load that is over was no problem."""
    now = [problem for server in servers for problem in server.problems]
    told = dict.fromkeys([*before, *now])
    return tuple(problem for problem in told if problem != LOADING or problem in now)


def _end(rollout: Rollout) -> End:
    match rollout.phase:
        case "promoted" | "rolled_back" | "paused":
            return rollout.phase
        case "rolling" | "held":
            return "unsettled"
