"""Report on a folder of traces: as records, and as text for a terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from sluice.base.format_number import format_ms
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.trace.diagnosis import SEVERITY_LABELS, Diagnosis, diagnose
from sluice.trace.finding import TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.report.conclusion import Conclusion, conclude
from sluice.trace.report.step_profile import StepProfile, format_peak_memory, profile_steps
from sluice.trace.rules.library import RULES, judge_ranks, judge_with_failures
from sluice.trace.trace_reader import find_traces, read_trace

_SKEW_RATIO = 1.5
"""If the mean step time is more than this multiple of the median, a text report shows the median,
too."""


class ProcessReport(Record):
    """Report on one traced process: how it ended, the problems found, and its step profile."""

    folder: str
    rank: int
    steps: int
    conclusion: Conclusion
    is_cut_off: bool = Field(False, description="Whether tracing stopped before the program ended.")
    notes: tuple[str, ...]
    profile: StepProfile | None
    diagnoses: tuple[Diagnosis, ...]


def report_traces(folder: Path) -> tuple[ProcessReport, ...]:
    """Return a report for each traced process in a folder of traces.

    Problems that are found by comparing ranks are in the first report.

    Raises:
        StorageError: The folder contains no trace.
        ContractError: A trace is damaged.
    """
    process_folders = find_traces(folder)
    traces = [read_trace(process_folder) for process_folder in process_folders]
    rank_findings = judge_ranks(_latest_by_rank(traces))
    return tuple(
        _report_process(process_folder, trace, rank_findings if index == 0 else ())
        for index, (process_folder, trace) in enumerate(zip(process_folders, traces, strict=True))
    )


def _report_process(
    folder: Path, trace: Trace, rank_findings: Sequence[TraceFinding]
) -> ProcessReport:
    findings, rule_failures = judge_with_failures(trace)
    return ProcessReport(
        folder=str(folder),
        rank=trace.start.rank,
        steps=trace.num_steps,
        conclusion=conclude(trace),
        is_cut_off=any(note.kind == "failed" for note in trace.notes),
        notes=(*(note.text for note in trace.notes), *rule_failures),
        profile=profile_steps(trace),
        diagnoses=diagnose([*findings, *rank_findings]),
    )


def format_report(report: ProcessReport) -> str:
    """Format a report for a terminal: root causes first, each with its consequences."""
    conclusion = report.conclusion
    steps = pluralize(report.steps, "step")
    lines = [f"{report.folder}: rank {report.rank}, {steps}, {conclusion.ending}"]
    lines += [f"  note: {note}" for note in report.notes]
    if conclusion.what:
        lines += [f"  {conclusion.what}", f"    do:   {conclusion.fix}"]
    for diagnosis in report.diagnoses:
        lines += _diagnosis_lines(diagnosis)
    if report.is_cut_off:
        lines.append(f"  steps after {report.steps} were not checked")
    elif not report.steps and not report.diagnoses:
        lines.append("  no optimizer step was recorded: nothing can be checked")
    elif not report.diagnoses:
        lines += _no_finding_lines(report)
    if report.profile is not None:
        lines += _profile_lines(report.profile)
    return "\n".join(lines)


def _no_finding_lines(report: ProcessReport) -> Iterable[str]:
    """Yield the lines of a report without findings.

    The report states "no problem found" only if the program ended without an error.
    """
    conclusion = report.conclusion
    if conclusion.ending == "ended":
        yield f"  no problem found by {len(RULES)} rules"
    else:
        yield f"  no rule found the cause up to step {report.steps}"
    yield f"    checked:     {'; '.join(conclusion.checked)}"
    if conclusion.unchecked:
        yield f"    not checked: {'; '.join(conclusion.unchecked)}"


def _diagnosis_lines(diagnosis: Diagnosis) -> Iterable[str]:
    finding = diagnosis.finding
    yield (
        f"  {SEVERITY_LABELS[finding.severity]}, step {diagnosis.step}: {diagnosis.fault} "
        f"({diagnosis.confidence:.0%} confidence)"
    )
    observation, *other_observations = dict.fromkeys(f.what for f in diagnosis.findings)
    yield f"    seen: {observation}"
    for other_observation in other_observations:
        yield f"          {other_observation}"
    yield f"    why:  {finding.cause}"
    yield f"    do:   {finding.fix}"
    yield f"    false alarm if: {finding.contradicted_by}"
    yield f"    see:  {finding.explain_command}"
    for effect in diagnosis.consequences:
        yield f"    consequence, step {effect.step}: {effect.what}"


def _profile_lines(profile: StepProfile) -> Iterable[str]:
    shares = ", ".join(f"{time.phase} {time.share:.0%}" for time in profile.phases)
    yield f"  step time: {format_ms(profile.step_us / 1000)} ({shares})"
    if profile.step_us > _SKEW_RATIO * profile.median_us:
        yield (
            f"    some steps are much slower: half of the steps take under "
            f"{format_ms(profile.median_us / 1000)}"
        )
    if memory := format_peak_memory(profile):
        yield f"  peak memory: {memory}"
    yield f"    bottleneck: {profile.bottleneck}. {profile.advice}"


def _latest_by_rank(traces: Sequence[Trace]) -> list[Trace]:
    """Return for each rank its latest trace that contains steps, in the order of the ranks.

    Traces of runs with a smaller world size than the largest one are ignored.
    """
    world_size = max((trace.start.world_size for trace in traces), default=1)
    trace_by_rank = {
        trace.start.rank: trace
        for trace in sorted(traces, key=lambda trace: trace.start.began)
        if trace.start.world_size == world_size and trace.num_steps
    }
    return [trace_by_rank[rank] for rank in sorted(trace_by_rank)]
