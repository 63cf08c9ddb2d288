"""What a folder of traces says, as text."""

from pathlib import Path

from sluice.settings import Record
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding
from sluice.trace.reading import find_traces, read_trace
from sluice.trace.rules.library import judge


class ProcessReport(Record):
    """One process and what is wrong with its training."""

    folder: str
    rank: int
    steps: int
    ending: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]


def report_on(out: Path) -> tuple[ProcessReport, ...]:
    """Judge every traced process in a folder.

    Raises:
        StorageError: There is no trace.
        ContractError: A trace is damaged.
    """
    reports = []
    for folder in find_traces(out):
        trace = read_trace(folder)
        reports.append(
            ProcessReport(
                folder=str(folder),
                rank=trace.start.rank,
                steps=trace.num_steps,
                ending=_ending(trace),
                notes=tuple(note.text for note in trace.notes),
                findings=judge(trace),
            )
        )
    return tuple(reports)


def as_text(report: ProcessReport) -> str:
    """Return a report as lines for a terminal."""
    lines = [f"{report.folder}: rank {report.rank}, {report.steps} steps, {report.ending}"]
    lines += [f"  note: {note}" for note in report.notes]
    for finding in report.findings:
        word = "needs confirmation" if finding.severity == "confirm" else finding.severity
        lines += [
            f"  {word}, step {finding.step}: {finding.what}",
            f"    why: {finding.cause}",
            f"    do:  {finding.fix}",
        ]
    if not report.findings:
        lines.append("  nothing wrong in the order of events and the membership of parameters")
    return "\n".join(lines)


def _ending(trace: Trace) -> str:
    if trace.end is None:
        return "killed or still running"
    return f"ended by {trace.end.raised}" if trace.end.raised else "ended"
