"""What all runs of the fault benchmark come to, as shares with intervals."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import Field

from sluice.base.settings import Record
from sluice.bench.gate.error_rates import Rate
from sluice.bench.tracer.baselines import BASELINES
from sluice.bench.tracer.result import Kind, RunResult

NOTHING = "nothing"
"""Said of a run without an answer."""


class Figure(Record):
    """One share and what it is held to."""

    name: str
    rate: Rate
    target: float
    higher_is_better: bool = True

    @property
    def reached(self) -> bool:
        """Whether the share itself meets its target."""
        share = self.rate.rate
        return share >= self.target if self.higher_is_better else share <= self.target

    @property
    def is_missed(self) -> bool:
        """Whether it is proven to miss its target: the interval does not reach it."""
        low, high = self.rate.interval
        return high < self.target if self.higher_is_better else low > self.target


class FaultScore(Record):
    """All runs with one fault."""

    number: int
    name: str
    caught: Rate
    first: Rate = Field(description="The right answer is the first one.")
    third: Rate = Field(description="It is among the first three.")
    in_time: Rate
    late: float = Field(description="Median steps until the verdict; NaN when nothing is caught.")
    instead: dict[str, int] = Field(description="What was said first when that was not right.")


class Silence(Record):
    """All runs of one program without a fault."""

    number: int
    name: str
    kind: Kind
    runs: int
    errors: int
    confirms: int
    warnings: int
    said: dict[str, int] = Field(description="'severity: fault', and in how many runs.")


class CauseScore(Record):
    """One cause, wherever it was the first answer."""

    fault: str
    right: int = Field(description="Runs in which it was right.")
    elsewhere: dict[str, int] = Field(description="Runs in which it was not, by their name.")


class BaselineScore(Record):
    """What another monitor makes of the same runs."""

    name: str
    caught: Rate = Field(description="Faulty runs with an alarm; the cause is not named.")
    false: Rate | None = Field(description="Runs without a fault that have an alarm.")


class FaultReport(Record):
    """The whole benchmark."""

    figures: tuple[Figure, ...]
    faults: tuple[FaultScore, ...]
    silence: tuple[Silence, ...]
    causes: tuple[CauseScore, ...]
    baselines: tuple[BaselineScore, ...]
    runs: tuple[RunResult, ...]

    @property
    def failed(self) -> tuple[RunResult, ...]:
        """Runs that ended otherwise than they should."""
        return tuple(run for run in self.runs if run.failed)

    @property
    def passed(self) -> bool:
        """No run failed, all weights agree, and no figure is proven to be missed."""
        return not (
            self.failed
            or any(run.has_same_bits is False for run in self.runs)
            or any(figure.is_missed for figure in self.figures)
        )


def score(runs: Sequence[RunResult]) -> FaultReport:
    """Return what runs come to. A faulty run that failed was not caught."""
    ordered = sorted(runs, key=lambda run: (run.kind, run.number, run.net, run.seed))
    faulty = [run for run in ordered if run.kind == "fault"]
    # Nothing can be said of a program that did not run to its end.
    healthy = [run for run in ordered if run.kind != "fault" and not run.failed]
    return FaultReport(
        figures=tuple(_figures(faulty, healthy)),
        faults=tuple(_fault_score(own) for own in _by_case(faulty)),
        silence=tuple(_silence(own) for own in _by_case(healthy)),
        causes=_causes([*faulty, *healthy]),
        baselines=_baselines(faulty, healthy),
        runs=tuple(ordered),
    )


def _figures(faulty: list[RunResult], healthy: list[RunResult]) -> Iterable[Figure]:
    if faulty:
        caught = [run for run in faulty if run.place is not None]
        yield Figure(name="faulty runs caught", rate=_rate(faulty, _is_caught), target=0.95)
        yield Figure(name="right cause first", rate=_rate(faulty, _is_first), target=0.90)
        yield Figure(
            name="right cause among the first three", rate=_rate(faulty, _is_third), target=0.98
        )
        if caught:
            rate = _rate(caught, lambda run: run.is_in_time)
            yield Figure(name="verdict at the right step", rate=rate, target=0.95)
    if healthy:
        yield Figure(
            name="healthy runs with an error",
            rate=_rate(healthy, lambda run: bool(run.told("error"))),
            target=0.01,
            higher_is_better=False,
        )
        yield Figure(
            name="healthy runs with a warning or a question",
            rate=_rate(healthy, lambda run: bool(run.told("confirm") or run.told("warning"))),
            target=0.05,
            higher_is_better=False,
        )
    compared = [run for run in (*faulty, *healthy) if run.has_same_bits is not None]
    if compared:
        rate = _rate(compared, lambda run: bool(run.has_same_bits))
        yield Figure(name="final weights of the same bits", rate=rate, target=1.0)


def _fault_score(runs: list[RunResult]) -> FaultScore:
    late = [run.late for run in runs if run.late is not None]
    return FaultScore(
        number=runs[0].number,
        name=runs[0].name,
        caught=_rate(runs, _is_caught),
        first=_rate(runs, _is_first),
        third=_rate(runs, _is_third),
        in_time=_rate(runs, lambda run: run.is_in_time),
        late=statistics.median(late) if late else float("nan"),
        instead=dict(Counter(_said_first(run) for run in runs if not _is_first(run))),
    )


def _silence(runs: list[RunResult]) -> Silence:
    said = Counter(
        text for run in runs for text in {f"{a.severity}: {a.fault}" for a in run.answers}
    )
    return Silence(
        number=runs[0].number,
        name=runs[0].name,
        kind=runs[0].kind,
        runs=len(runs),
        errors=sum(bool(run.told("error")) for run in runs),
        confirms=sum(bool(run.told("confirm")) for run in runs),
        warnings=sum(bool(run.told("warning")) for run in runs),
        said=dict(said),
    )


def _causes(runs: Sequence[RunResult]) -> tuple[CauseScore, ...]:
    told = [run for run in runs if run.answers]
    found = []
    for fault in sorted({run.answers[0].fault for run in told}):
        first = [run for run in told if run.answers[0].fault == fault]
        elsewhere = Counter(
            run.name if run.kind == "fault" else f"{run.name} ({run.kind})"
            for run in first
            if fault not in run.right
        )
        right = len(first) - elsewhere.total()
        found.append(CauseScore(fault=fault, right=right, elsewhere=dict(elsewhere)))
    return tuple(found)


def _baselines(
    faulty: Sequence[RunResult], healthy: Sequence[RunResult]
) -> tuple[BaselineScore, ...]:
    seen = [run for run in faulty if run.alarms is not None]
    quiet = [run for run in healthy if run.alarms is not None]
    if not seen:
        return ()
    return tuple(
        BaselineScore(
            name=name,
            caught=_rate(seen, _has_alarm(name)),
            false=_rate(quiet, _has_alarm(name)) if quiet else None,
        )
        for name in BASELINES
    )


def _has_alarm(name: str) -> Callable[[RunResult], bool]:
    return lambda run: name in (run.alarms or {})


def _by_case(runs: Iterable[RunResult]) -> Iterable[list[RunResult]]:
    cases: dict[tuple[str, int, str], list[RunResult]] = {}
    for run in runs:
        cases.setdefault((run.kind, run.number, run.name), []).append(run)
    return cases.values()


def _rate(runs: Sequence[RunResult], holds: Callable[[RunResult], bool]) -> Rate:
    return Rate(count=sum(map(holds, runs)), total=len(runs))


def _is_caught(run: RunResult) -> bool:
    return run.place is not None


def _is_first(run: RunResult) -> bool:
    return run.place == 1


def _is_third(run: RunResult) -> bool:
    return run.place is not None and run.place <= 3


def _said_first(run: RunResult) -> str:
    if run.failed:
        return f"failed: {run.failed}"
    return f"{run.answers[0].severity}: {run.answers[0].fault}" if run.answers else NOTHING
