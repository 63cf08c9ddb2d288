"""What a folder of traces says: as records, and as text."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.conclusion import Conclusion, conclude
from sluice.trace.diagnosis import Diagnosis, diagnose
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding
from sluice.trace.profile import Profile, profile
from sluice.trace.reading import find_traces, read_trace
from sluice.trace.rules.library import RULES, judge_all, judge_ranks

_SEVERITY = {"error": "error", "confirm": "needs confirmation", "warning": "warning"}

_SKEWED = 1.5
"""Mean time of a step beside the median: from this ratio on both are shown."""


class ProcessReport(Record):
    """One process and what is wrong with its training."""

    folder: str
    rank: int
    steps: int
    conclusion: Conclusion
    is_cut_off: bool = Field(False, description="Tracing stopped, and the program went on.")
    notes: tuple[str, ...]
    profile: Profile | None
    diagnoses: tuple[Diagnosis, ...]


def report_on(out: Path) -> tuple[ProcessReport, ...]:
    """Judge every traced process in a folder; what is wrong between ranks is told by the first.

    Raises:
        StorageError: There is no trace.
        ContractError: A trace is damaged.
    """
    folders = find_traces(out)
    traces = [read_trace(folder) for folder in folders]
    between = judge_ranks(_ranks(traces))
    return tuple(
        _report(folder, trace, between if number == 0 else ())
        for number, (folder, trace) in enumerate(zip(folders, traces, strict=True))
    )


def _report(folder: Path, trace: Trace, between: Sequence[Finding]) -> ProcessReport:
    findings, failed = judge_all(trace)
    return ProcessReport(
        folder=str(folder),
        rank=trace.start.rank,
        steps=trace.num_steps,
        conclusion=conclude(trace),
        is_cut_off=any(note.kind == "failed" for note in trace.notes),
        notes=(*(note.text for note in trace.notes), *failed),
        profile=profile(trace),
        diagnoses=diagnose([*findings, *between]),
    )


def as_text(report: ProcessReport) -> str:
    """Return a report as lines for a terminal: causes first, each with its consequences."""
    end = report.conclusion
    lines = [f"{report.folder}: rank {report.rank}, {report.steps} steps, {end.ending}"]
    lines += [f"  note: {note}" for note in report.notes]
    if end.what:
        lines += [f"  {end.what}", f"    do:   {end.fix}"]
    for diagnosis in report.diagnoses:
        lines += _lines(diagnosis)
    if report.is_cut_off:
        lines.append(f"  what came after step {report.steps} was not looked at")
    elif not report.steps and not report.diagnoses:
        lines.append("  no step was seen: of a training nothing can be said")
    elif not report.diagnoses:
        lines += _no_finding(report)
    if report.profile is not None:
        lines += _time(report.profile)
    return "\n".join(lines)


def _no_finding(report: ProcessReport) -> Iterable[str]:
    """Return what was checked; 'nothing wrong' only where the program ended without an error."""
    end = report.conclusion
    if end.ending == "ended":
        yield f"  nothing wrong was found by {len(RULES)} rules"
    else:
        yield f"  no rule names a cause up to step {report.steps}"
    yield f"    checked:     {'; '.join(end.checked)}"
    if end.unchecked:
        yield f"    not checked: {'; '.join(end.unchecked)}"


def _lines(diagnosis: Diagnosis) -> Iterable[str]:
    finding = diagnosis.finding
    yield (
        f"  {_SEVERITY[finding.severity]}, step {diagnosis.step}: {diagnosis.fault} "
        f"({diagnosis.confidence:.0%})"
    )
    seen, *others = dict.fromkeys(f.what for f in diagnosis.findings)
    yield f"    seen: {seen}"
    for other in others:
        yield f"          {other}"
    yield f"    why:  {finding.cause}"
    yield f"    do:   {finding.fix}"
    yield f"    not so if: {finding.contradicted_by}"
    for effect in diagnosis.explains:
        yield f"    so also, step {effect.step}: {effect.what}"


def _time(told: Profile) -> Iterable[str]:
    shares = ", ".join(f"{one.phase} {one.share:.0%}" for one in told.phases)
    yield f"  time of a step: {told.step_us / 1000:.3g} ms ({shares})"
    if told.step_us > _SKEWED * told.median_us:
        yield (
            f"    some steps are much slower: half of them take under "
            f"{told.median_us / 1000:.3g} ms"
        )
    if told.peak_host_bytes:
        device = f", {told.peak_device_bytes / 2**20:,.0f} MiB on the GPU"
        yield (
            f"  memory at most: {told.peak_host_bytes / 2**20:,.0f} MiB"
            f"{device if told.peak_device_bytes else ''}"
        )
    yield f"    {told.bottleneck} first: {told.advice}"


def _ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Return the latest trace of each rank of the largest group that ran together."""
    size = max((trace.start.world_size for trace in traces), default=1)
    in_turn = sorted(traces, key=lambda trace: trace.start.began)
    by_rank = {t.start.rank: t for t in in_turn if t.start.world_size == size and t.num_steps}
    return [by_rank[rank] for rank in sorted(by_rank)]
