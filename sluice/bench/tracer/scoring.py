"""Scores of the fault benchmark over all runs, as rates with intervals."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.planted.rate import Rate
from sluice.bench.planted.score import rate_of, score_planted
from sluice.bench.tracer.baselines import BASELINES
from sluice.bench.tracer.result import Kind, RunResult

NOTHING = "nothing"
"""Entry of ``FaultScore.instead`` for runs in which no cause was reported."""


class TargetRate(Record):
    """One rate and its target."""

    name: str
    rate: Rate
    target: float = Field(description="Target of the rate, as a fraction of the runs.")
    higher_is_better: bool = True

    @property
    def is_reached(self) -> bool:
        """Whether the measured rate reaches its target."""
        rate = self.rate.rate
        return rate >= self.target if self.higher_is_better else rate <= self.target

    @property
    def is_significantly_missed(self) -> bool:
        """Whether the whole interval of the rate is worse than the target."""
        low, high = self.rate.interval
        return high < self.target if self.higher_is_better else low > self.target


class FaultScore(Record):
    """Scores of all runs of one fault case, with its fault."""

    number: int
    name: str
    caught: Rate = Field(description="Runs in which a correct cause was reported.")
    first: Rate = Field(description="Runs in which a correct cause is ranked first.")
    third: Rate = Field(description="Runs in which a correct cause is among the first three.")
    in_time: Rate = Field(description="Runs with ``is_in_time``: the reported step is correct.")
    late: float = Field(
        description="Median number of steps from the first affected step to the step of the "
        "correct cause; NaN if no correct cause was reported in any run."
    )
    instead: dict[str, int] = Field(
        description="Number of runs in which no correct cause is ranked first, by the cause that "
        "is ranked first instead."
    )


class HealthyScore(Record):
    """Scores of all runs of one case without a fault."""

    number: int
    name: str
    kind: Kind
    runs: int
    errors: int = Field(description="Number of runs with an error.")
    confirms: int = Field(description="Number of runs with a cause that needs confirmation.")
    warnings: int = Field(description="Number of runs with a warning.")
    said: dict[str, int] = Field(
        description="Number of runs in which a cause was reported, by 'severity: fault'."
    )


class CauseScore(Record):
    """Scores of one cause, over all runs in which the cause was ranked first."""

    fault: str
    right: int = Field(description="Number of runs in which the cause is correct.")
    elsewhere: dict[str, int] = Field(
        description="Number of runs in which the cause is wrong, by name of the case. '(twin)' or "
        "'(healthy)' after the name marks runs without a fault."
    )


class BaselineScore(Record):
    """Scores of another monitor on the same programs."""

    name: str
    caught: Rate = Field(
        description="Faulty runs in which the monitor raises an alarm. A monitor names no cause."
    )
    false: Rate | None = Field(description="Healthy runs in which the monitor raises an alarm.")


class FaultReport(Record):
    """Scores of the whole benchmark."""

    figures: tuple[TargetRate, ...] = Field(description="Rates that have a target.")
    faults: tuple[FaultScore, ...]
    silence: tuple[HealthyScore, ...] = Field(description="Scores of programs without a fault.")
    causes: tuple[CauseScore, ...]
    baselines: tuple[BaselineScore, ...]
    runs: tuple[RunResult, ...]

    @property
    def failed(self) -> tuple[RunResult, ...]:
        """Runs without a valid result."""
        return tuple(run for run in self.runs if run.failed)

    @property
    def passed(self) -> bool:
        """Whether no run failed, all compared weights are equal, and no target is missed.

        Only a target that is significantly missed counts.
        """
        return not (
            self.failed
            or any(run.has_same_bits is False for run in self.runs)
            or any(figure.is_significantly_missed for figure in self.figures)
        )


def score(runs: Sequence[RunResult]) -> FaultReport:
    """Return the scores of runs. The fault of a run that failed counts as not detected."""
    ordered_runs = sorted(runs, key=lambda run: (run.kind, run.number, run.net, run.seed))
    faulty_runs = [run for run in ordered_runs if run.kind == "fault"]
    # A healthy run that failed is not scored: its program may have ended before a false alarm.
    healthy_runs = [run for run in ordered_runs if run.kind != "fault" and not run.failed]
    return FaultReport(
        figures=tuple(_target_rates(faulty_runs, healthy_runs)),
        faults=tuple(_score_fault(runs_of_case) for runs_of_case in _group_by_case(faulty_runs)),
        silence=tuple(
            _score_healthy(runs_of_case) for runs_of_case in _group_by_case(healthy_runs)
        ),
        causes=_score_causes([*faulty_runs, *healthy_runs]),
        baselines=_score_baselines(faulty_runs, healthy_runs),
        runs=tuple(ordered_runs),
    )


def _target_rates(
    faulty_runs: list[RunResult], healthy_runs: list[RunResult]
) -> Iterable[TargetRate]:
    scores = score_planted(faulty_runs, healthy_runs)
    caught_runs = [run for run in faulty_runs if run.is_caught]
    for name, rate, target in (
        ("faults detected", scores.caught, 0.95),
        ("correct cause first", scores.first, 0.90),
        (
            "correct cause among the first three",
            rate_of(faulty_runs, _is_correct_cause_in_first_three),
            0.98,
        ),
        (
            "cause at the correct step, if detected",
            rate_of(caught_runs, lambda run: run.is_in_time),
            0.95,
        ),
    ):
        if rate is not None:
            yield TargetRate(name=name, rate=rate, target=target)
    for name, rate, target in (
        ("healthy runs with an error", scores.false_errors, 0.01),
        ("healthy runs with a warning or a cause to confirm", scores.false_warnings, 0.05),
    ):
        if rate is not None:
            yield TargetRate(name=name, rate=rate, target=target, higher_is_better=False)
    compared_runs = [run for run in (*faulty_runs, *healthy_runs) if run.has_same_bits is not None]
    if compared_runs:
        rate = _rate(compared_runs, lambda run: bool(run.has_same_bits))
        yield TargetRate(name="final weights identical", rate=rate, target=1.0)


def _score_fault(runs: list[RunResult]) -> FaultScore:
    late_steps = [run.late_steps for run in runs if run.late_steps is not None]
    return FaultScore(
        number=runs[0].number,
        name=runs[0].name,
        caught=_rate(runs, lambda run: run.is_caught),
        first=_rate(runs, lambda run: run.is_first),
        third=_rate(runs, _is_correct_cause_in_first_three),
        in_time=_rate(runs, lambda run: run.is_in_time),
        late=statistics.median(late_steps) if late_steps else float("nan"),
        instead=dict(Counter(_describe_first_cause(run) for run in runs if not run.is_first)),
    )


def _score_healthy(runs: list[RunResult]) -> HealthyScore:
    num_runs_by_cause = Counter(
        text for run in runs for text in {f"{a.severity}: {a.fault}" for a in run.answers}
    )
    return HealthyScore(
        number=runs[0].number,
        name=runs[0].name,
        kind=runs[0].kind,
        runs=len(runs),
        errors=sum(run.has_error for run in runs),
        confirms=sum(bool(run.causes_with_severity("confirm")) for run in runs),
        warnings=sum(bool(run.causes_with_severity("warning")) for run in runs),
        said=dict(num_runs_by_cause),
    )


def _score_causes(runs: Sequence[RunResult]) -> tuple[CauseScore, ...]:
    runs_with_causes = [run for run in runs if run.answers]
    causes = []
    for fault in sorted({run.answers[0].fault for run in runs_with_causes}):
        runs_with_fault_first = [run for run in runs_with_causes if run.answers[0].fault == fault]
        elsewhere = Counter(
            run.name if run.kind == "fault" else f"{run.name} ({run.kind})"
            for run in runs_with_fault_first
            if fault not in run.right
        )
        right = len(runs_with_fault_first) - elsewhere.total()
        causes.append(CauseScore(fault=fault, right=right, elsewhere=dict(elsewhere)))
    return tuple(causes)


def _score_baselines(
    faulty_runs: Sequence[RunResult], healthy_runs: Sequence[RunResult]
) -> tuple[BaselineScore, ...]:
    monitored_faulty_runs = [run for run in faulty_runs if run.alarms is not None]
    monitored_healthy_runs = [run for run in healthy_runs if run.alarms is not None]
    if not monitored_faulty_runs:
        return ()
    return tuple(
        BaselineScore(
            name=name,
            caught=_rate(monitored_faulty_runs, _has_alarm(name)),
            false=_rate(monitored_healthy_runs, _has_alarm(name))
            if monitored_healthy_runs
            else None,
        )
        for name in BASELINES
    )


def _has_alarm(name: str) -> Callable[[RunResult], bool]:
    return lambda run: name in (run.alarms or {})


def _group_by_case(runs: Iterable[RunResult]) -> Iterable[list[RunResult]]:
    cases: dict[tuple[str, int, str], list[RunResult]] = {}
    for run in runs:
        cases.setdefault((run.kind, run.number, run.name), []).append(run)
    return cases.values()


def _rate(runs: Sequence[RunResult], condition: Callable[[RunResult], bool]) -> Rate:
    return Rate(count=sum(map(condition, runs)), total=len(runs))


def _is_correct_cause_in_first_three(run: RunResult) -> bool:
    return run.correct_rank is not None and run.correct_rank <= 3


def _describe_first_cause(run: RunResult) -> str:
    if run.failed:
        return f"failed: {run.failed}"
    return f"{run.answers[0].severity}: {run.answers[0].fault}" if run.answers else NOTHING
