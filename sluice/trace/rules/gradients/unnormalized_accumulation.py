"""Detects gradient accumulation over several batches without a division of the loss."""

from collections import Counter

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.events import TraceEvent
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import (
    OptimizerStep,
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class UnnormalizedAccumulationSettings(Settings):
    """Thresholds of the rule ``UNNORMALIZED_ACCUMULATION``."""

    min_manual_passes: int = Field(
        3,
        ge=2,
        description="Backward passes per step required when no known loss function was called.",
    )
    max_shared_row_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Share of the rows of a batch that another batch may repeat, as in sampling "
        "with replacement.",
    )


def _groups(step: OptimizerStep) -> list[list[TraceEvent]]:
    """Return the events up to each backward pass of a step since the gradients were cleared.

    A block that was repeated is returned twice.
    """
    events: list[TraceEvent] = []
    for event in step.sequence.events[: step.position]:
        events.append(event)
        if event.repeat_length:
            events += events[-event.repeat_length :]
    groups: list[list[TraceEvent]] = [[]]
    for event in events:
        groups[-1].append(event)
        if event.kind == "backward":
            groups.append([])
        elif event.kind in ("zero", "step", "skip") and event.object_id in (-1, step.end.object_id):
            groups = [[]]
    return groups[:-1]


def _is_undivided(step: OptimizerStep) -> bool:
    return "edited" not in step.end.flags and all(
        "unscaled mean" in group[-1].flags for group in _groups(step)
    )


def _is_summed(step: OptimizerStep, *, may_lack_loader: bool) -> bool:
    """Whether the step sums undivided mean losses of one network on different batches."""
    groups = _groups(step)
    if len(groups) < 2 or not _is_undivided(step):
        return False
    alike = set()
    for group in groups:
        batches = {m.object_id for m in group if m.kind == "batch"}
        called = [m.object_id for m in group if m.kind == "forward"]
        learning = [m for m in group if m.kind == "forward" and "grad" in m.flags]
        # Two forward passes and one loss: the loss compares the two outputs.
        if len(batches) > 1 or len(learning) != 1:
            return False
        alike.add((frozenset(batches), tuple(called)))
    if len(alike) > 1:
        return False
    ((loaders, _),) = alike
    networks = {m.object_id for m in step.sequence.events if m.kind == "forward"}
    return bool(loaders) or (may_lack_loader and len(networks) == 1)


def _have_different_rows(settings: UnnormalizedAccumulationSettings, trace: Trace) -> bool:
    """Whether the batches before a step had different rows, not the same rows for several tasks."""
    by_step: dict[tuple[int, int], list[set[int]]] = {}
    for fact in trace.rows:
        if fact.is_learning:
            by_step.setdefault((fact.step, fact.network), []).append(set(fact.rows))
    several = [rows for rows in by_step.values() if len(rows) > 1]
    return bool(several) and all(
        len(one & other) <= settings.max_shared_row_share * len(one)
        for rows in several
        for i, one in enumerate(rows)
        for other in rows[:i]
    )


def _judge(rule: Rule[UnnormalizedAccumulationSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    found = []
    learning = [f for f in trace.losses if f.is_learning]
    kinds = {f.kind for f in learning}
    # A constant target per loss is normal for real and generated rows.
    has_targets = any(f.target_smallest < f.target_largest for f in learning)
    is_manual = not learning
    may_lack_loader = (has_targets or is_manual) and _have_different_rows(rule.settings, trace)
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        summed = tuple(s for s in steps if _is_summed(s, may_lack_loader=may_lack_loader))
        several = tuple(s for s in steps if len(_groups(s)) > 1)
        # A step after an evaluation has other events but is of the same kind.
        if len(kinds) > 1 or not all(map(_is_undivided, several)):
            continue
        counts = Counter(len(n.losses) for n in trace.scalars if len(n.losses) > 1)
        num_batches = counts.most_common(1)[0][0] if counts else 2
        # Of two custom losses, one may use real rows and the other generated rows.
        if (
            not summed
            or count_steps(summed) < count_steps(several) / 2
            or (is_manual and num_batches < rule.settings.min_manual_passes)
        ):
            continue
        found.append(
            rule.finding(
                severity="error",
                step=first_step_of(summed),
                what=f"{optimizer_name(trace, optimizer)}: {count_steps(summed)} of "
                f"{count_steps(steps)} steps used the sum of the gradients of {num_batches} "
                "batches, each from an undivided mean loss.",
                cause=f"The gradient is {num_batches} times the gradient of the mean over all "
                "rows, so the effective learning rate, clipping and weight decay are wrong.",
                fix=f"Divide the loss by the number of batches: (loss / {num_batches}).backward().",
                num_batches=num_batches,
                num_steps=count_steps(summed),
            )
        )
    return tuple(found)


UNNORMALIZED_ACCUMULATION = Rule(
    name="the loss is divided by the number of accumulated batches",
    fault="unnormalized gradient accumulation",
    priority=440,
    requires="Steps after several backward passes of one network, each on a different batch.",
    contradicted_by="A learning rate that is intentionally divided by the number of batches.",
    abstains="The loss is divided, weighted or a sum; the program changes gradients before the "
    "step; the backward passes belong to several tasks or networks; or they alternate with other "
    "steps.",
    settings=UnnormalizedAccumulationSettings(),
    judge=_judge,
)
