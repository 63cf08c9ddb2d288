"""The gate's report as plain text: one line per check."""

from sluice.failfast.result import CheckResult, GateReport


def report_text(report: GateReport) -> str:
    """Return the report for a terminal: the verdict, then one line per check.

    A line holds outcome, requirement, name, time and what was seen; when something is wrong, also
    why it is likely and what to do.
    """
    heading = (
        f"POC gate ({report.level}) of {report.workload}: {report.outcome} "
        f"after {report.seconds:.1f} s"
    )
    width = max(len(result.name) for result in report.results)
    return "\n".join([heading, *(_line(result, width) for result in report.results)])


def _line(result: CheckResult, width: int) -> str:
    told = " ".join(part for part in (result.summary, result.cause, result.fix) if part)
    return (
        f"{result.outcome:<12} {result.requirement:<6} {result.name:<{width}} "
        f"{result.seconds:7.2f} s  {told}"
    )
