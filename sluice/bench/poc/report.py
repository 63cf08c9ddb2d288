"""Output of the gate benchmark: a line per entry, then the totals."""

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.bench.poc.result import BenchmarkReport, DefectResult, HealthyResult


def defect_line(result: DefectResult) -> Text:
    """Return one line about a planted defect, with what was wrong with the result."""
    if result.caught:
        return _line("caught", "green", result.seconds, f"{result.name}: {result.check}")
    what = {
        "missed": f"{result.check} should have failed, but nothing did",
        "other check": f"{result.check} should have failed first, but {result.objected} did",
        "wrong response": f"{result.check} did not report {', '.join(map(repr, result.absent))}",
    }[result.verdict]
    reported = f" Reported: {result.summary}" if result.summary else ""
    return _line(result.verdict, "bold red", result.seconds, f"{result.name}: {what}.{reported}")


def healthy_line(result: HealthyResult) -> Text:
    """Return one line about a healthy set-up, with failed checks."""
    if result.left_alone:
        warned = ", ".join(warning.partition(":")[0] for warning in result.warnings)
        note = f" (warned: {warned})" if warned else ""
        return _line("passed", "green", result.seconds, f"{result.name}{note}")
    objections = " ".join(result.objections)
    return _line("false alarm", "bold red", result.seconds, f"{result.name}: {objections}")


def benchmark_page(report: BenchmarkReport) -> RenderableType:
    """Return the totals of both tables, with exact intervals, and the slowest entries."""
    table = Table("", "", box=box.SIMPLE, show_header=False)
    if report.defects:
        table.add_row("Planted defects caught, by the named check", escape(str(report.caught)))
        table.add_row("Planted defects missed", escape(str(report.missed)))
        table.add_row("Gate time of a defect", _times([r.seconds for r in report.defects]))
    if report.healthy:
        table.add_row("Healthy set-ups that failed", escape(str(report.false_alarms)))
        table.add_row("Healthy set-ups with a warning", escape(str(report.false_warnings)))
        table.add_row("Gate time of a healthy set-up", _times([r.seconds for r in report.healthy]))
    table.add_row("Gate time of all", f"{report.seconds:.1f} s")
    verdict = (
        Text("Every defect was caught, no healthy set-up failed.", "green")
        if report.passed
        else Text("The gate is not as right as it must be: see the lines in red.", "bold red")
    )
    return Group(table, verdict)


def _times(seconds: list[float]) -> str:
    return f"{sum(seconds) / len(seconds):.2f} s on average, {max(seconds):.2f} s at most"


def _line(word: str, style: str, seconds: float, text: str) -> Text:
    return Text.assemble((f"{word:<15}", style), f"{seconds:6.2f} s  ", text)
