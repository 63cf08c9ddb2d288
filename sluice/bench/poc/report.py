"""Output of the benchmark of the POC gate: one line per run, then the totals."""

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.bench.planted.lines import result_line
from sluice.bench.poc.result import DefectResult, HealthyResult, PocBenchmarkReport


def defect_line(result: DefectResult) -> Text:
    """Return one line about a planted defect, with the difference if it was not caught."""
    if result.is_caught:
        return result_line(
            "caught", "green", f"{result.name}: {result.check}", seconds=result.seconds
        )
    missing_texts = ", ".join(map(repr, result.missing_texts))
    difference = {
        "missed": f"{result.check} should have reported it, but no check did",
        "other check": f"{result.check} should have reported it, but the first report was "
        f"'{result.outcome}' of {result.first_check}",
        "wrong response": f"{result.check} did not report {missing_texts}",
    }[result.verdict]
    report_text = f" Reported: {result.summary}" if result.summary else ""
    text = f"{result.name}: {difference}.{report_text}"
    return result_line(result.verdict, "bold red", text, seconds=result.seconds)


def healthy_line(result: HealthyResult) -> Text:
    """Return one line about a healthy set-up, with the checks that failed or warned."""
    if not result.has_error:
        warning_checks = ", ".join(warning.partition(":")[0] for warning in result.warnings)
        note = f" (warned: {warning_checks})" if warning_checks else ""
        return result_line("passed", "green", f"{result.name}{note}", seconds=result.seconds)
    objections = " ".join(result.objections)
    return result_line(
        "false alarm", "bold red", f"{result.name}: {objections}", seconds=result.seconds
    )


def benchmark_page(report: PocBenchmarkReport) -> RenderableType:
    """Return the rates with exact intervals, the times of the gate, and the verdict."""
    table = Table("", "", box=box.SIMPLE, show_header=False)
    score = report.score
    for name, rate in (
        ("Planted defects caught by the named check", score.caught),
        ("Planted defects missed", report.miss_rate),
        ("Healthy set-ups that failed", score.false_errors),
        ("Healthy set-ups with a warning", score.false_warnings),
    ):
        if rate is not None:
            table.add_row(name, escape(rate.exact_text))
    for name, results in (("defect", report.defects), ("healthy set-up", report.healthy)):
        if results:
            table.add_row(
                f"Time of the gate per {name}", _times_text([result.seconds for result in results])
            )
    table.add_row("Time of all runs of the gate", f"{report.seconds:.1f} s")
    verdict = (
        Text("Every defect was caught, and no healthy set-up failed.", "green")
        if report.passed
        else Text(
            "A defect was not caught, or a healthy set-up failed: see the red lines.", "bold red"
        )
    )
    return Group(table, verdict)


def _times_text(seconds: list[float]) -> str:
    return f"{sum(seconds) / len(seconds):.2f} s on average, {max(seconds):.2f} s at most"
