"""Profile of the step time: shares of its phases, the bottleneck, and the first change to try.

Times are wall-clock times of the program's thread. GPU operations run asynchronously, so the time
of an operation counts for the phase in which the program waits for its result. The shares therefore
show where the program waits, not what the GPU computes.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.trace.records.events import StepSequence, TraceEvent, TraceEventKind
from sluice.trace.records.trace import Trace

Phase = Literal["data", "forward", "backward", "optimizer", "evaluation", "other"]

PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "evaluation", "other")

_PHASE_BY_EVENT_KIND: Mapping[TraceEventKind, Phase] = {
    "epoch": "data",
    "batch": "data",
    "forward": "forward",
    "backward": "backward",
    "grad": "backward",
    "zero": "optimizer",
    "clip": "optimizer",
    "unscale": "optimizer",
    "update scale": "optimizer",
    "schedule": "optimizer",
    # The end of optimizer.step(), recorded only for an optimizer that did not call its closure
    # exactly once. The event "step" has no entry here: it marks the start of the update (with a
    # closure, after its first call), so the time before it does not belong to the optimizer.
    "stepped": "optimizer",
}
"""Phase of the time between the previous event and an event of this kind."""

_PHASES_SLOWEST_FIRST: tuple[Phase, ...] = ("backward", "evaluation", "forward", "data")
"""Phases in descending order of their usual time.

Of a repeated block of events, only the times of the first run and of the end of the last run are
known. The time of all later runs is assigned to one phase: the first phase of this tuple that the
block contains.
"""

_MIN_STEPS = 5
"""Minimum number of steps with times for a profile."""

_BOTTLENECK_SHARES: tuple[tuple[Phase, float], ...] = (
    ("data", 0.25),
    ("other", 0.35),
    ("optimizer", 0.35),
)
"""Phases that are easier to shorten than the passes of the network, each with its minimum share of
the step time. The first of these phases that takes at least this share is reported as the
bottleneck, even if another phase takes longer."""


class PhaseTime(Record):
    """Time of one phase of the step."""

    phase: Phase
    share: float = Field(ge=0, le=1, description="Share of the time of all profiled steps.")
    mean_us: float = Field(
        ge=0, description="Mean time of the phase per step, over all profiled steps [us]."
    )


class StepProfile(Record):
    """Profile of the recent steps of a run."""

    steps: int = Field(ge=1, description="Number of steps with times.")
    step_us: float = Field(
        description="Mean time from the end of one step to the end of the next [us]; for a step "
        "whose prediction failed, from the failure. It is the sum of the mean times of the phases."
    )
    median_us: float = Field(description="Median time of a step [us].")
    phases: tuple[PhaseTime, ...] = Field(description="Phases by time, the longest first.")
    bottleneck: Phase
    advice: str = Field(description="First change to try.")
    peak_host_bytes: int = Field(description="Peak memory of the process; 0 if unknown [bytes].")
    peak_device_bytes: int = Field(
        description="Peak memory of the tensors on each GPU, summed over the GPUs; 0 without a GPU "
        "[bytes]."
    )


def format_peak_memory(profile: StepProfile) -> str:
    """Return the peak memory, such as '326 MiB, 120 MiB on the GPU'; '' if it is unknown."""
    if not profile.peak_host_bytes:
        return ""
    host_text = f"{profile.peak_host_bytes / 2**20:,.0f} MiB"
    if not profile.peak_device_bytes:
        return host_text
    return f"{host_text}, {profile.peak_device_bytes / 2**20:,.0f} MiB on the GPU"


def profile_steps(trace: Trace) -> StepProfile | None:
    """Return the profile of a run; None if fewer than five steps after the first have times."""
    phase_times_us = list(_phase_times(trace))
    num_steps = len(phase_times_us)
    if num_steps < _MIN_STEPS:
        return None
    step_times_us = [sum(time_by_phase.values()) for time_by_phase in phase_times_us]
    totals_us = {phase: sum(times.get(phase, 0) for times in phase_times_us) for phase in PHASES}
    phases = [
        PhaseTime(phase=phase, share=total_us / sum(step_times_us), mean_us=total_us / num_steps)
        for phase, total_us in totals_us.items()
        if total_us
    ]
    phases.sort(key=lambda phase_time: -phase_time.share)
    bottleneck = _find_bottleneck(phases)
    return StepProfile(
        steps=num_steps,
        step_us=statistics.fmean(step_times_us),
        median_us=statistics.median(step_times_us),
        phases=tuple(phases),
        bottleneck=bottleneck,
        advice=_advice(trace, bottleneck),
        peak_host_bytes=0 if trace.end is None else trace.end.peak_host_bytes,
        peak_device_bytes=0 if trace.end is None else trace.end.peak_device_bytes,
    )


def _phase_times(trace: Trace) -> Iterator[dict[Phase, int]]:
    """Yield for each recent step the time of each phase [us].

    The first step of a run is omitted, because it includes one-time work.
    """
    for record in trace.recent_steps:
        if record.began_us is not None and record.ended_us is not None and record.step > 1:
            times_us = [record.began_us, *record.times_us, record.ended_us]
            yield _time_by_phase(trace.sequences[record.sequence], times_us)


def _time_by_phase(sequence: StepSequence, times_us: Sequence[int]) -> dict[Phase, int]:
    """Return the time of each phase of a step [us].

    Args:
        sequence: Events of the step.
        times_us: Start of the step, time of each event, and end of the step [us].
    """
    time_by_phase: dict[Phase, int] = {}
    phases = [_phase_before(event) for event in sequence.events]
    # Assign the time of a repeated block to the block's slowest phase. The last event of the block
    # has the time at which the last run of the block ended.
    for position, event in enumerate(sequence.events):
        if event.repeat_length:
            block = phases[position + 1 - event.repeat_length : position + 1]
            phases[position] = next(
                (phase for phase in _PHASES_SLOWEST_FIRST if phase in block), block[-1]
            )
    # The last event is usually the start of optimizer.step(), so the time after it counts for the
    # optimizer.
    for phase, (start, end) in zip([*phases, "optimizer"], pairwise(times_us), strict=True):
        time_by_phase[phase] = time_by_phase.get(phase, 0) + max(end - start, 0)
    return time_by_phase


def _phase_before(event: TraceEvent) -> Phase:
    """Return the phase of the time between the previous event and an event."""
    if event.kind == "forward" and "grad" not in event.flags:
        return "evaluation"
    return _PHASE_BY_EVENT_KIND.get(event.kind, "other")


def _find_bottleneck(phases: Sequence[PhaseTime]) -> Phase:
    shares = {phase_time.phase: phase_time.share for phase_time in phases}
    for phase, min_share in _BOTTLENECK_SHARES:
        if shares.get(phase, 0.0) >= min_share:
            return phase
    return phases[0].phase


def _advice(trace: Trace, bottleneck: Phase) -> str:
    num_workers = max((loader.num_workers for loader in trace.loaders), default=0)
    return {
        "data": f"The step waits for its batch. The loader has {pluralize(num_workers, 'worker')}: "
        "use more workers, set persistent_workers=True, and preprocess rows once instead of in "
        "every epoch."
        if trace.loaders
        else "The step waits for its batch: use a DataLoader with workers.",
        "forward": "The forward pass takes the largest share: try a larger batch, bf16 autocast or "
        "torch.compile.",
        "backward": "The backward pass takes the largest share: try a larger batch, bf16 autocast "
        "or torch.compile. Activation checkpointing makes the backward pass slower.",
        "optimizer": "The optimizer takes a large share: use fused=True, fewer and larger "
        "parameters, or a larger batch, so that there are fewer steps.",
        "evaluation": "Passes without gradients take the largest share: validate less often, on "
        "fewer rows, and in torch.inference_mode().",
        "other": "The program's own code between the passes takes a large share: do not log, copy "
        "tensors or call .item() at every step.",
    }[bottleneck]
