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

    min_passes_if_loss_unknown: int = Field(
        3,
        ge=2,
        description="If no call of a loss function is recorded, a finding requires at least this "
        "number of backward passes per step. Two passes may be for the two losses of a GAN.",
    )
    max_shared_row_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Two batches of a step count as different if at most this share of the later "
        "batch's rows are also in the earlier batch. Sampling with replacement repeats some rows.",
    )


def _events_by_backward(step: OptimizerStep) -> list[list[TraceEvent]]:
    """Return one group of events for each backward pass since gradients were cleared or used.

    A group ends with its backward pass. The trace stores a repeated block of events once. Such a
    block is returned twice, so that its passes count as several.
    """
    events: list[TraceEvent] = []
    for event in step.sequence.events[: step.end_position]:
        events.append(event)
        if event.repeat_length:
            events += events[-event.repeat_length :]
    groups: list[list[TraceEvent]] = [[]]
    for event in events:
        groups[-1].append(event)
        if event.kind == "backward":
            groups.append([])
        elif event.kind in ("zero", "step", "skip") and event.object_id in (
            -1,
            step.end_event.object_id,
        ):
            groups = [[]]
    return groups[:-1]


def _has_undivided_means(step: OptimizerStep) -> bool:
    """Whether each loss is a mean, and neither the losses nor the gradients are divided."""
    return "edited" not in step.end_event.flags and all(
        "unscaled mean" in group[-1].flags for group in _events_by_backward(step)
    )


def _sums_undivided_means(step: OptimizerStep, *, may_lack_loader: bool) -> bool:
    """Whether the step sums the mean losses of several batches without dividing any of them.

    All losses must be of one network. The batches must come from one loader; with
    ``may_lack_loader``, they may also come from no loader.
    """
    groups = _events_by_backward(step)
    if len(groups) < 2 or not _has_undivided_means(step):
        return False
    signatures = set()
    for group in groups:
        loaders = frozenset(event.object_id for event in group if event.kind == "batch")
        forwards = [event for event in group if event.kind == "forward"]
        num_forwards_with_gradients = sum("grad" in event.flags for event in forwards)
        # Each loss must have one forward pass: a loss after two passes compares the two outputs.
        if len(loaders) > 1 or num_forwards_with_gradients != 1:
            return False
        signatures.add((loaders, tuple(event.object_id for event in forwards)))
    if len(signatures) > 1:
        return False
    ((loaders, _),) = signatures
    networks = {event.object_id for event in step.sequence.events if event.kind == "forward"}
    return bool(loaders) or (may_lack_loader and len(networks) == 1)


def _have_different_rows(settings: UnnormalizedAccumulationSettings, trace: Trace) -> bool:
    """Whether the batches of each step have different rows; False if no step has several batches.

    Batches with the same rows are one batch that is used for several tasks.
    """
    batches_by_step: dict[tuple[int, int], list[set[int]]] = {}
    for record in trace.rows:
        if record.is_learning:
            batches_by_step.setdefault((record.step, record.network), []).append(set(record.rows))
    accumulated_batches = [batches for batches in batches_by_step.values() if len(batches) > 1]
    return bool(accumulated_batches) and all(
        len(batch & earlier_batch) <= settings.max_shared_row_share * len(batch)
        for batches in accumulated_batches
        for i, batch in enumerate(batches)
        for earlier_batch in batches[:i]
    )


def _judge(rule: Rule[UnnormalizedAccumulationSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    losses = [record for record in trace.losses if record.is_learning]
    if len({record.kind for record in losses}) > 1:
        return ()
    # Losses with constant targets may be those of a GAN. Its discriminator has one target for real
    # rows and another for generated rows, and the two losses are summed intentionally.
    has_varying_targets = any(record.target_smallest < record.target_largest for record in losses)
    is_loss_unknown = not losses
    may_lack_loader = (has_varying_targets or is_loss_unknown) and _have_different_rows(
        rule.settings, trace
    )
    for optimizer in stepping_optimizers(trace):
        steps = steps_of(trace, optimizer)
        summed_steps = tuple(
            s for s in steps if _sums_undivided_means(s, may_lack_loader=may_lack_loader)
        )
        accumulating_steps = tuple(s for s in steps if len(_events_by_backward(s)) > 1)
        if not all(map(_has_undivided_means, accumulating_steps)):
            continue
        pass_counts = Counter(len(r.losses) for r in trace.scalars if len(r.losses) > 1)
        num_batches = pass_counts.most_common(1)[0][0] if pass_counts else 2
        # Half of the steps suffice: the first step after an evaluation also contains the events of
        # the evaluation, so its groups of events differ and ``summed_steps`` does not contain it.
        # If no loss function is recorded, two losses per step may be those of a GAN.
        if (
            not summed_steps
            or count_steps(summed_steps) < count_steps(accumulating_steps) / 2
            or (is_loss_unknown and num_batches < rule.settings.min_passes_if_loss_unknown)
        ):
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(summed_steps),
                what=f"{optimizer_name(trace, optimizer)}: {count_steps(summed_steps)} of "
                f"{count_steps(steps)} steps used the sum of the gradients of {num_batches} "
                f"batches. Each loss is a mean that was not divided by {num_batches}.",
                cause=f"The gradient is {num_batches} times the gradient of the mean over all "
                "rows. This changes the effect of clipping and, unless the optimizer normalizes "
                "gradients, of the learning rate.",
                fix=f"Divide the loss by the number of batches: (loss / {num_batches}).backward().",
                num_batches=num_batches,
                num_steps=count_steps(summed_steps),
            )
        )
    return tuple(findings)


UNNORMALIZED_ACCUMULATION = Rule(
    name="the loss is divided by the number of accumulated batches",
    fault="unnormalized gradient accumulation",
    priority=440,
    requires="Steps after several backward passes of one network, each on a different batch.",
    contradicted_by="A learning rate that is intentionally divided by the number of batches.",
    abstains="The loss is divided, weighted or a sum; the program changes gradients before the "
    "step; the backward passes belong to several tasks or networks; or other optimizers make a "
    "step between the backward passes.",
    settings=UnnormalizedAccumulationSettings(),
    judge=_judge,
)
