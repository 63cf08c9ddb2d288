"""Output of the fault benchmark: a line per unexpected run, then the tables."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.bench.planted.lines import result_line
from sluice.bench.planted.rate import Rate
from sluice.bench.tracer.result import RunResult
from sluice.bench.tracer.scoring import (
    BaselineScore,
    FaultReport,
    FaultScore,
    HealthyScore,
    TargetRate,
)


def run_line(run: RunResult) -> Text | None:
    """Return one line about an unexpected run; None for an expected one."""
    reported = (
        ", ".join(f"{a.severity} '{a.fault}' at step {a.step}" for a in run.answers) or "nothing"
    )
    if run.failed:
        word, style, details = "failed", "bold red", run.failed
    elif run.has_same_bits is False:
        word, style, details = (
            "weights differ",
            "bold red",
            "the traced program computed other weights",
        )
    elif run.kind != "fault":
        if not run.answers:
            return None
        word, style = (
            ("false error", "bold red") if run.causes_of("error") else ("false warning", "yellow")
        )
        details = f"reported {reported}"
    elif run.correct_rank is None:
        word, style, details = "missed", "bold red", f"reported {reported}"
    elif run.correct_rank > 1:
        word, style, details = f"rank {run.correct_rank}", "yellow", f"reported {reported}"
    elif not run.is_in_time:
        word, style = "wrong step", "yellow"
        details = f"the fault starts at step {run.starts_at}, reported {reported}"
    else:
        return None
    return result_line(word, style, f"{run.number:>2} {run.name}{_of(run)}: {details}")


def report_page(report: FaultReport) -> RenderableType:
    """Return rates with targets, then scores of faults, healthy programs and other monitors."""
    parts: list[RenderableType] = []
    if report.faults:
        parts.append(_fault_table(report.faults))
    if report.silence:
        parts.append(_silence_table(report.silence))
    wrong = [cause for cause in report.causes if cause.elsewhere]
    if wrong:
        table = _table("Causes ranked first in runs where they are wrong", "cause", "correct")
        table.add_column("wrong in")
        for cause in wrong:
            table.add_row(cause.fault, str(cause.right), _counts(cause.elsewhere))
        parts.append(table)
    if report.baselines:
        parts.append(_baseline_table(report.baselines))
    parts.append(_figure_table(report.figures))
    return Group(*parts)


def _fault_table(faults: Sequence[FaultScore]) -> Table:
    table = _table("Faults", "", "runs", "caught", "first", "in 3", "in time", "late")
    table.add_column("ranked first instead")
    for fault in faults:
        table.add_row(
            f"{fault.number:>2} {fault.name}",
            str(fault.caught.total),
            _count(fault.caught),
            _count(fault.first),
            _count(fault.third),
            _count(fault.in_time),
            "" if fault.late != fault.late else f"{fault.late:g}",
            _counts(fault.instead),
        )
    return table


def _silence_table(silence: Sequence[HealthyScore]) -> Table:
    table = _table("Programs without a fault", "", "runs", "errors", "to confirm", "warnings")
    table.add_column("reported")
    for score in silence:
        twin = " (without its fault)" if score.kind == "twin" else ""
        table.add_row(
            f"{score.number:>2} {score.name}{twin}",
            str(score.runs),
            Text(str(score.errors), "bold red" if score.errors else ""),
            Text(str(score.confirms), "yellow" if score.confirms else ""),
            Text(str(score.warnings), "yellow" if score.warnings else ""),
            _counts(score.said),
        )
    return table


def _baseline_table(baselines: Sequence[BaselineScore]) -> Table:
    table = _table(
        "Other monitors on the same runs: alarms [% of runs] (95 % interval)",
        "",
        "faulty",
        "healthy",
    )
    for score in baselines:
        table.add_row(
            score.name, str(score.caught), "" if score.false is None else str(score.false)
        )
    return table


def _figure_table(figures: Sequence[TargetRate]) -> Table:
    table = _table("Rates [%] (95 % interval)", "", "measured", "runs", "target", "")
    for figure in figures:
        sign = "at least" if figure.higher_is_better else "at most"
        mark = Text("reached", "green") if figure.reached else Text("not reached", "bold red")
        table.add_row(
            figure.name,
            str(figure.rate),
            str(figure.rate.total),
            f"{sign} {100 * figure.target:g}",
            mark,
        )
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _count(rate: Rate) -> Text:
    return Text(str(rate.count), "" if rate.count == rate.total else "bold red")


def _counts(counts_by_text: Mapping[str, int]) -> str:
    return ", ".join(f"{text} ({count})" for text, count in counts_by_text.items())


def _of(run: RunResult) -> str:
    kind = ", without its fault" if run.kind == "twin" else ""
    return f" ({run.net}, seed {run.seed}{kind})"
