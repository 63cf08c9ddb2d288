"""Where the time of a step goes, and what to change first (TRACE-17).

Times are those of the program's own thread. On a GPU an operation is only begun then, and the wait
for it falls to whoever reads a number next: shares tell what the program waits in, not what the
GPU does.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field

from sluice.base.settings import Record
from sluice.trace.evidence.order import MarkKind, RecentStep, StepWord
from sluice.trace.evidence.trace import Trace

Phase = Literal["data", "forward", "backward", "optimizer", "evaluation", "other"]

PHASES: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer", "evaluation", "other")

_PHASE_OF: Mapping[MarkKind, Phase] = {
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
    "stepped": "optimizer",
}
"""What a program did from the mark before to this one."""

_LONGEST_FIRST: tuple[Phase, ...] = ("backward", "evaluation", "forward", "data")
"""Of the phases of a block."""

_LEAST_STEPS = 5
_CHEAP_TO_MEND: tuple[tuple[Phase, float], ...] = (
    ("data", 0.25),
    ("other", 0.35),
    ("optimizer", 0.35),
)
"""Phases that are the bottleneck from this share on: waiting is cheaper to mend than computing."""


class PhaseTime(Record):
    """One kind of work in a step."""

    phase: Phase
    share: float = Field(ge=0, le=1, description="Of the time of all steps.")
    mean_us: float = Field(ge=0, description="Of one step, over the same steps as the share [us].")


class Profile(Record):
    """The recent steps of a run."""

    steps: int = Field(ge=1)
    step_us: float = Field(
        description="Mean time from the end of a step to that of the next; the phases add up to "
        "it [us]."
    )
    median_us: float = Field(description="Half of the steps take less [us].")
    phases: tuple[PhaseTime, ...] = Field(description="The longest first.")
    bottleneck: Phase
    advice: str = Field(description="What to change first.")
    peak_host_bytes: int = Field(description="0 for unknown.")
    peak_device_bytes: int


def profile(trace: Trace) -> Profile | None:
    """Return where the time went; None when fewer than five steps in a row have times."""
    spent = [times for times in _steps(trace) if times]
    if len(spent) < _LEAST_STEPS:
        return None
    totals = [sum(times.values()) for times in spent]
    whole = sum(totals) or 1
    phases = [
        PhaseTime(
            phase=phase,
            share=sum(column) / whole,
            mean_us=sum(column) / len(spent),
        )
        for phase in PHASES
        if any(column := [times.get(phase, 0) for times in spent])
    ]
    phases.sort(key=lambda one: -one.share)
    bottleneck = _bottleneck(phases)
    return Profile(
        steps=len(spent),
        step_us=sum(totals) / len(spent),
        median_us=statistics.median(totals),
        phases=tuple(phases),
        bottleneck=bottleneck,
        advice=_advice(trace, bottleneck),
        peak_host_bytes=0 if trace.end is None else trace.end.peak_host_bytes,
        peak_device_bytes=0 if trace.end is None else trace.end.peak_device_bytes,
    )


def _steps(trace: Trace) -> Iterator[dict[Phase, int]]:
    """Yield the time of each phase [us]; not of the first step, which makes much for the rest."""
    for recent in trace.recent:
        if recent.began_us is not None and recent.ended_us is not None and recent.step > 1:
            yield _phases(trace.words[recent.word], recent.began_us, recent)


def _phases(word: StepWord, began_us: int, recent: RecentStep) -> dict[Phase, int]:
    times = [began_us, *recent.times_us, recent.ended_us or began_us]
    found: dict[Phase, int] = {}
    names = [_phase(word, place) for place in range(len(word.marks))]
    # The repeats of a block end with its last mark.
    for place, mark in enumerate(word.marks):
        if mark.block:
            names[place] = _longest(names[place + 1 - mark.block : place + 1])
    for name, (start, end) in zip([*names, "optimizer"], pairwise(times), strict=True):
        found[name] = found.get(name, 0) + max(end - start, 0)
    return found


def _longest(block: Sequence[Phase]) -> Phase:
    """Return what takes the most time of a block, as its repeats have no times of their own."""
    return next((phase for phase in _LONGEST_FIRST if phase in block), block[-1])


def _phase(word: StepWord, place: int) -> Phase:
    mark = word.marks[place]
    if mark.kind == "forward" and "grad" not in mark.flags:
        return "evaluation"
    return _PHASE_OF.get(mark.kind, "other")


def _bottleneck(phases: Sequence[PhaseTime]) -> Phase:
    shares = {one.phase: one.share for one in phases}
    for phase, least in _CHEAP_TO_MEND:
        if shares.get(phase, 0.0) >= least:
            return phase
    return phases[0].phase


def _advice(trace: Trace, bottleneck: Phase) -> str:
    workers = max((loader.num_workers for loader in trace.loaders), default=0)
    return {
        "data": f"The step waits for its batch. The loader has {workers} workers: give it more, "
        "keep them (persistent_workers=True), and prepare rows once instead of in every epoch."
        if trace.loaders
        else "The step waits for its batch: load it through a DataLoader with workers.",
        "forward": "The network itself is the work: a larger batch, bf16 autocast or "
        "torch.compile make it cheaper.",
        "backward": "The network itself is the work: a larger batch, bf16 autocast or "
        "torch.compile make it cheaper; recomputed activations cost time here.",
        "optimizer": "The optimizer takes as long as the network: fused=True, fewer and larger "
        "parameters, or a larger batch, so that it steps less often.",
        "evaluation": "Passes without gradients take most of the time: validate less often, or on "
        "fewer rows, and in torch.inference_mode().",
        "other": "The time goes into the program's own code between the passes: reading numbers "
        "with .item(), logging, or moving tensors at every step.",
    }[bottleneck]
