"""Output of the gate benchmark: a line per entry, then the totals."""

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.bench.planted.lines import result_line
from sluice.bench.poc.result import BenchmarkReport, DefectResult, HealthyResult


def defect_line(result: DefectResult) -> Text:
    """Return one line about a planted defect, with what was wrong with the result."""
    if result.is_caught:
        return result_line(
            "caught", "green", f"{result.name}: {result.check}", seconds=result.seconds
        )
    difference = {
        "missed": f"{result.check} should have failed, but nothing did",
        "other check": f"{result.check} should have failed first, but {result.objected} did",
        "wrong response": f"{result.check} did not report {', '.join(map(repr, result.absent))}",
    }[result.verdict]
    reported = f" Reported: {result.summary}" if result.summary else ""
    text = f"{result.name}: {difference}.{reported}"
    return result_line(result.verdict, "bold red", text, seconds=result.seconds)


def healthy_line(result: HealthyResult) -> Text:
    """Return one line about a healthy set-up, with failed checks."""
    if not result.has_error:
        warned = ", ".join(warning.partition(":")[0] for warning in result.warnings)
        note = f" (warned: {warned})" if warned else ""
        return result_line("passed", "green", f"{result.name}{note}", seconds=result.seconds)
    objections = " ".join(result.objections)
    return result_line(
        "false alarm", "bold red", f"{result.name}: {objections}", seconds=result.seconds
    )


def benchmark_page(report: BenchmarkReport) -> RenderableType:
    """Return the totals of both tables, with exact intervals, and the gate times."""
    table = Table("", "", box=box.SIMPLE, show_header=False)
    score = report.score
    for name, rate in (
        ("Planted defects caught, by the named check", score.caught),
        ("Planted defects missed", report.missed),
        ("Healthy set-ups that failed", score.false_errors),
        ("Healthy set-ups with a warning", score.false_warnings),
    ):
        if rate is not None:
            table.add_row(name, escape(rate.exact_text))
    for name, results in (("defect", report.defects), ("healthy set-up", report.healthy)):
        if results:
            table.add_row(f"Gate time of a {name}", _times([r.seconds for r in results]))
    table.add_row("Gate time of all", f"{report.seconds:.1f} s")
    verdict = (
        Text("Every defect was caught, no healthy set-up failed.", "green")
        if report.passed
        else Text("A defect was missed, or a healthy set-up failed: see the red lines.", "bold red")
    )
    return Group(table, verdict)


def _times(seconds: list[float]) -> str:
    return f"{sum(seconds) / len(seconds):.2f} s on average, {max(seconds):.2f} s at most"
