"""Detects parameters that belong to two optimizers."""

from collections.abc import Iterator

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import (
    count_steps,
    first_step_of,
    last_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)
from sluice.trace.rules._helpers.parameters import list_names


class ParameterInTwoOptimizersSettings(Settings):
    """Thresholds of the rule ``PARAMETER_IN_TWO_OPTIMIZERS``."""

    min_repeated_steps: int = Field(
        2,
        ge=1,
        description="Severity 'error' requires at least this number of repeated steps. A repeated "
        "step uses a gradient with which the other optimizer has already made a step.",
    )


def _concurrent_pairs(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yield pairs of optimizers with overlapping step ranges.

    Optimizers that follow each other, such as a new optimizer for every task, are not compared.
    """
    step_ranges = sorted(
        (first_step_of(steps), last_step_of(steps), optimizer)
        for optimizer in stepping_optimizers(trace)
        if (steps := steps_of(trace, optimizer))
    )
    active_optimizers = list[tuple[int, int]]()  # (last step, index) of each optimizer in use
    for first_step, last_step, optimizer in step_ranges:
        active_optimizers = [
            (end_step, other_optimizer)
            for end_step, other_optimizer in active_optimizers
            if end_step >= first_step
        ]
        yield from (
            (min(other_optimizer, optimizer), max(other_optimizer, optimizer))
            for _, other_optimizer in active_optimizers
        )
        active_optimizers.append((last_step, optimizer))


def _judge(rule: Rule[ParameterInTwoOptimizersSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    if membership is None:
        return ()
    findings = []
    parameters_by_optimizer = {
        record.index: set(record.parameters) for record in membership.optimizers
    }
    for first_optimizer, second_optimizer in sorted(_concurrent_pairs(trace)):
        shared_parameters = sorted(
            parameters_by_optimizer.get(first_optimizer, set())
            & parameters_by_optimizer.get(second_optimizer, set())
        )
        if not shared_parameters:
            continue
        first_steps = steps_of(trace, first_optimizer)
        second_steps = steps_of(trace, second_optimizer)
        # The second of two steps on one gradient follows no backward pass. The gradient is still
        # "fresh" for this optimizer, because it is new since the optimizer's own last step.
        repeated_steps = tuple(
            s
            for s in (*first_steps, *second_steps)
            if s.last_backward_position < 0 and "fresh" in s.end_event.flags
        )
        num_repeated_steps = count_steps(repeated_steps)
        has_repeated_steps = num_repeated_steps >= rule.settings.min_repeated_steps
        names = [membership.name_of(parameter) for parameter in shared_parameters]
        findings.append(
            rule.finding(
                severity="error" if has_repeated_steps else "confirm",
                step=first_step_of(repeated_steps)
                if has_repeated_steps
                else max(first_step_of(first_steps), first_step_of(second_steps)),
                what=f"{pluralize(len(shared_parameters), 'parameter')} "
                f"{'is' if len(shared_parameters) == 1 else 'are'} in "
                f"both {optimizer_name(trace, first_optimizer)} and "
                f"{optimizer_name(trace, second_optimizer)}: {list_names(names)}."
                + (
                    f" Both stepped on the same gradient {num_repeated_steps} times."
                    if has_repeated_steps
                    else ""
                ),
                cause="Both optimizers update such a parameter, each with its own state.",
                fix="Add each parameter to one optimizer only.",
                num_shared=len(shared_parameters),
                num_repeated_steps=num_repeated_steps,
            )
        )
    return tuple(findings)


PARAMETER_IN_TWO_OPTIMIZERS = Rule(
    name="every parameter belongs to one optimizer",
    fault="parameter in two optimizers",
    priority=70,
    requires="A snapshot of the networks and optimizers, and steps of two optimizers.",
    contradicted_by="Losses that intentionally alternate on the same parameters.",
    abstains="One optimizer follows the other, as in two phases of training.",
    settings=ParameterInTwoOptimizersSettings(),
    judge=_judge,
)
