"""The POC gate: a table of checks, and the one place that runs and times them (POC-11, POC-12)."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pandas as pd

from sluice.data.folds import Fold
from sluice.errors import ContractError
from sluice.failfast.event_log_check import check_event_log
from sluice.failfast.gradient_flow import check_gradient_flow
from sluice.failfast.instantiation import check_instantiation
from sluice.failfast.mini_training import check_mini_training
from sluice.failfast.responses import FailureKind
from sluice.failfast.result import CheckResult, Finding, GateReport, Level, Outcome
from sluice.failfast.selector import check_selector
from sluice.failfast.settings import PocSettings, TimeLimit, TimeLimits
from sluice.failfast.user_code import finding_from
from sluice.models.settings import ModelSettings
from sluice.training.seeds import deterministic
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples, Workload

Clock = Callable[[], datetime]


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """What the checks look at."""

    workload: Workload
    frame: pd.DataFrame
    folds: tuple[Fold, ...]
    model: ModelSettings
    training: TrainSettings
    settings: PocSettings
    seed: int
    folder: Path
    clock: Clock

    @cached_property
    def train(self) -> Examples:
        """Train examples of fold 0; made when first asked for, inside a check.

        Raises:
            ContractError: There is no fold.
        """
        if not self.folds:
            raise ContractError(
                "At least one fold is required, plan_folds() gave none.",
                fix="Give more rows, or fewer and larger folds.",
            )
        return self.workload.examples(self.frame, self.folds[0].train)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One line of the table."""

    requirement: str
    name: str
    description: str
    function: Callable[[GateInputs], Finding]
    limit: Callable[[TimeLimits], TimeLimit]
    needs: tuple[str, ...] = ()
    """Requirements that must have passed, or this one is skipped."""
    levels: frozenset[Level] = frozenset({"minimum", "full"})
    times_whole_gate: bool = False
    """Its time counts from the start of the gate."""


CHECKS: tuple[GateCheck, ...] = (
    GateCheck(
        requirement="POC-1",
        name="model_instantiates",
        description="The model runs on one real batch; its output has the target's shape.",
        function=lambda i: check_instantiation(
            i.workload, i.model, i.train, i.settings, seed=i.seed
        ),
        limit=lambda times: times.instantiation,
    ),
    GateCheck(
        requirement="POC-2",
        name="gradients_flow",
        description="One backward pass reaches every trainable parameter with finite gradients.",
        function=lambda i: check_gradient_flow(
            i.workload, i.model, i.train, i.settings, seed=i.seed
        ),
        limit=lambda times: times.gradient_flow,
        needs=("POC-1",),
    ),
    GateCheck(
        requirement="POC-3",
        name="event_log_works",
        description="The event log can be written, flushed, read back and validated.",
        function=lambda i: check_event_log(
            i.folder,
            architecture=i.model.architecture,
            features=i.workload.feature_columns,
            config={
                "model": i.model.model_dump(mode="json"),
                "training": i.training.model_dump(mode="json"),
            },
            headline=i.workload.headline_metric,
            clock=i.clock,
        ),
        limit=lambda times: times.event_log,
    ),
    GateCheck(
        requirement="POC-4",
        name="selector_finds_best_epoch",
        description="The epoch selector returns planted best epochs and never an unusable one.",
        function=lambda i: check_selector(i.workload.select_epoch, i.settings, seed=i.seed),
        limit=lambda times: times.selector,
    ),
    GateCheck(
        requirement="POC-5",
        name="mini_training_learns",
        description="A brief training lowers the loss by more than seed noise explains.",
        function=lambda i: check_mini_training(
            i.workload, i.model, i.training, i.train, i.settings, seed=i.seed
        ),
        limit=lambda times: times.mini_training,
        needs=("POC-1", "POC-2"),
    ),
    GateCheck(
        requirement="POC-11",
        name="gate_is_in_time",
        description="The whole gate takes no longer than it may.",
        function=lambda i: Finding(
            outcome="pass", summary=f"All checks of {type(i.workload).__name__} ended."
        ),
        limit=lambda times: times.whole_gate,
        times_whole_gate=True,
    ),
)
"""Every check, in the order they run; the names are those of the Dagster checks."""

_MINIMUM = ("POC-1", "POC-2", "POC-3", "POC-4", "POC-5")
_REQUIRED: dict[Level, tuple[str, ...]] = {
    "minimum": _MINIMUM,
    "full": (*_MINIMUM, "POC-6", "POC-7", "POC-8", "POC-9", "POC-10"),
}


def deepest_level(checks: tuple[GateCheck, ...] = CHECKS) -> Level:
    """Return 'full' when the table has every check that the full gate requires."""
    known = {check.requirement for check in checks}
    return "full" if known.issuperset(_REQUIRED["full"]) else "minimum"


def run_gate(
    workload: Workload,
    frame: pd.DataFrame,
    folds: tuple[Fold, ...],
    model: ModelSettings,
    training: TrainSettings,
    settings: PocSettings,
    *,
    level: Level,
    seed: int,
    folder: Path,
    clock: Clock,
    on_result: Callable[[CheckResult], None],
    checks: tuple[GateCheck, ...] = CHECKS,
) -> GateReport:
    """Run every check of the level and report; nothing is left in ``folder`` (POC-12).

    An exception in the user's code fails the check it happened in. A check whose prerequisite did
    not pass is skipped, never passed.

    Args:
        workload: What is to be trained.
        frame: Its feature frame.
        folds: Its folds; the checks look at the train rows of the first.
        model: Architecture and size.
        training: Settings of the real training.
        settings: Thresholds and time limits.
        level: 'minimum' (POC-1..5) or 'full' (POC-1..10).
        seed: Base seed of everything drawn.
        folder: Existing folder on the disk that will hold the run's files.
        clock: The time, with a time zone; also measures how long checks take.
        on_result: Told of every result as it comes.
        checks: The table; another one for tests.

    Raises:
        ContractError: The table lacks a check that the level requires.
    """
    wanted = tuple(check for check in checks if level in check.levels)
    lacking = [r for r in _REQUIRED[level] if r not in {check.requirement for check in wanted}]
    if lacking:
        raise ContractError(
            f"The {level} gate requires {', '.join(lacking)}, and there is no such check.",
            fix="Run the minimum gate.",
        )
    inputs = GateInputs(
        workload=workload,
        frame=frame,
        folds=folds,
        model=model,
        training=training,
        settings=settings,
        seed=seed,
        folder=folder,
        clock=clock,
    )
    gate_started = clock()
    results: list[CheckResult] = []
    # As in the real training: an operation without a deterministic form must show here.
    with deterministic():
        for check in wanted:
            results.append(_run(check, inputs, results, gate_started))
            on_result(results[-1])
    return GateReport(
        level=level,
        workload=type(workload).__name__,
        results=tuple(results),
        seconds=_since(gate_started, clock),
    )


def _run(
    check: GateCheck, inputs: GateInputs, before: list[CheckResult], gate_started: datetime
) -> CheckResult:
    """Run and time one check. Everything that guards a check is put around it here."""
    started = gate_started if check.times_whole_gate else inputs.clock()
    blocking = [r for r in before if r.requirement in check.needs and not r.passed]
    if blocking:
        finding = _skipped(blocking[0])
    else:
        try:
            finding = check.function(inputs)
        except Exception as error:  # the edge of the user's code
            finding = finding_from(error)
    seconds = _since(started, inputs.clock)
    limit = check.limit(inputs.settings.times)
    finding = _judge_time(finding, seconds, limit)
    cause, fix = finding.response
    return CheckResult(
        name=check.name,
        requirement=check.requirement,
        outcome=finding.outcome,
        numbers=dict(finding.numbers),
        seconds=seconds,
        typical_s=limit.typical_s,
        max_s=limit.max_s,
        summary=finding.summary,
        cause=cause,
        fix=fix,
    )


def _skipped(blocking: CheckResult) -> Finding:
    name = f"{blocking.requirement} {blocking.name}"
    return Finding(
        outcome="skipped",
        summary=f"Not run, because {name} did not pass ({blocking.outcome}).",
        fix=f"Correct {name} first.",
    )


def _judge_time(finding: Finding, seconds: float, limit: TimeLimit) -> Finding:
    """Fail or warn when it took too long; what is already wrong stays the first thing said."""
    if seconds > limit.max_s and finding.outcome in ("pass", "warn"):
        allowed = f"at most {limit.max_s:g} s is allowed"
        return _late("fail", "gate over time", f"Took {seconds:.1f} s, {allowed}.", finding)
    if seconds > limit.typical_s and finding.outcome == "pass":
        usual = f"{limit.typical_s:g} s is usual"
        return _late("warn", "gate over typical time", f"Took {seconds:.1f} s, {usual}.", finding)
    return finding


def _late(outcome: Outcome, kind: FailureKind, took: str, finding: Finding) -> Finding:
    return Finding(
        outcome=outcome, summary=f"{took} {finding.summary}", numbers=finding.numbers, kind=kind
    )


def _since(started: datetime, clock: Clock) -> float:
    # A wall clock that is set back must not make a time negative.
    return max(0.0, (clock() - started).total_seconds())
