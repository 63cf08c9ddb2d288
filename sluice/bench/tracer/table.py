"""Output of the fault benchmark: one line for each unexpected run, and tables of the scores."""

import math
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
    """Return a line that describes an unexpected result; None for an expected result."""
    reported = (
        ", ".join(f"{a.severity} '{a.fault}' at step {a.step}" for a in run.answers) or "nothing"
    )
    expected = " or ".join(f"'{cause}'" for cause in run.right)
    if run.failed:
        label, style, details = "failed", "bold red", run.failed
    elif run.has_same_bits is False:
        label, style, details = (
            "weights differ",
            "bold red",
            "the final weights of the traced and the untraced run are not equal",
        )
    elif run.kind != "fault":
        if not run.answers:
            return None
        label, style = ("false error", "bold red") if run.has_error else ("false warning", "yellow")
        details = f"reported {reported}"
    elif run.correct_rank is None:
        label, style, details = "missed", "bold red", f"expected {expected}, reported {reported}"
    elif run.correct_rank > 1:
        label, style = f"rank {run.correct_rank}", "yellow"
        details = f"expected {expected} first, reported {reported}"
    elif not run.is_in_time:
        label, style = "wrong step", "yellow"
        details = f"the fault starts at step {run.starts_at}, reported {reported}"
    else:
        return None
    return result_line(label, style, f"{run.number:>2} {run.name}{_describe_run(run)}: {details}")


def report_page(report: FaultReport) -> RenderableType:
    """Return tables: faults, healthy programs, wrong causes, other monitors, rates with targets."""
    sections: list[RenderableType] = []
    if report.faults:
        sections.append(_fault_table(report.faults))
    if report.silence:
        sections.append(_healthy_table(report.silence))
    causes_elsewhere = [cause for cause in report.causes if cause.elsewhere]
    if causes_elsewhere:
        table = _table("Wrong causes that are ranked first", "cause", "runs where it is correct")
        table.add_column("cases where it is wrong (runs)")
        for cause in causes_elsewhere:
            table.add_row(cause.fault, str(cause.right), _format_counts(cause.elsewhere))
        sections.append(table)
    if report.baselines:
        sections.append(_baseline_table(report.baselines))
    sections.append(_rate_table(report.figures))
    return Group(*sections)


def _fault_table(faults: Sequence[FaultScore]) -> Table:
    table = _table(
        "Faults: runs in which a correct cause is reported, ranked and located",
        "fault",
        "runs",
        "reported",
        "ranked first",
        "in first 3",
        "correct step",
        "median steps late",
    )
    table.add_column("ranked first instead (runs)")
    for fault in faults:
        table.add_row(
            f"{fault.number:>2} {fault.name}",
            str(fault.caught.total),
            _format_count(fault.caught),
            _format_count(fault.first),
            _format_count(fault.third),
            _format_count(fault.in_time),
            "" if math.isnan(fault.late) else f"{fault.late:g}",
            _format_counts(fault.instead),
        )
    return table


def _healthy_table(scores: Sequence[HealthyScore]) -> Table:
    table = _table(
        "Programs without a fault: runs with an error, a cause to confirm or a warning",
        "program",
        "runs",
        "error",
        "to confirm",
        "warning",
    )
    table.add_column("reported causes (runs)")
    for score in scores:
        suffix = " (without its fault)" if score.kind == "twin" else ""
        table.add_row(
            f"{score.number:>2} {score.name}{suffix}",
            str(score.runs),
            Text(str(score.errors), "bold red" if score.errors else ""),
            Text(str(score.confirms), "yellow" if score.confirms else ""),
            Text(str(score.warnings), "yellow" if score.warnings else ""),
            _format_counts(score.said),
        )
    return table


def _baseline_table(baselines: Sequence[BaselineScore]) -> Table:
    table = _table(
        "Other monitors on the same programs: runs with an alarm [%] (95 % interval)",
        "monitor",
        "faulty runs",
        "healthy runs",
    )
    for score in baselines:
        table.add_row(
            score.name, str(score.caught), "" if score.false is None else str(score.false)
        )
    return table


def _rate_table(figures: Sequence[TargetRate]) -> Table:
    table = _table("Rates [%] (95 % interval)", "rate", "measured", "runs", "target", "result")
    for figure in figures:
        bound = "at least" if figure.higher_is_better else "at most"
        outcome = Text("reached", "green") if figure.is_reached else Text("not reached", "bold red")
        table.add_row(
            figure.name,
            str(figure.rate),
            str(figure.rate.total),
            f"{bound} {100 * figure.target:g}",
            outcome,
        )
    return table


def _table(title: str, first_column: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column(first_column)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _format_count(rate: Rate) -> Text:
    return Text(str(rate.count), "" if rate.count == rate.total else "bold red")


def _format_counts(counts_by_text: Mapping[str, int]) -> str:
    return ", ".join(f"{text} ({count})" for text, count in counts_by_text.items())


def _describe_run(run: RunResult) -> str:
    kind = ", without its fault" if run.kind == "twin" else ""
    return f" ({run.net}, seed {run.seed}{kind})"
