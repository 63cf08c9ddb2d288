"""Detects losses that are detached from the parameters."""

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.gradient_reach import GradientReachSettings, unreached_parameters
from sluice.trace.rules._helpers.optimizer_steps import (
    OptimizerStep,
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class LossDetachedSettings(Settings):
    """Thresholds of the rule ``LOSS_DETACHED``."""

    min_steps: int = Field(
        2, ge=1, description="A finding requires at least this number of steps without a gradient."
    )
    min_steps_at_end: int = Field(
        20,
        ge=1,
        description="If earlier steps had gradients, a finding requires at least this number of "
        "steps without a gradient at the end of the training.",
    )
    reach: GradientReachSettings = Field(
        GradientReachSettings(),
        description="Thresholds of the evidence that no gradient reaches a parameter.",
    )


def _starts_at_leaf(step: OptimizerStep) -> bool:
    """Whether all backward passes started at a tensor without a graph and set no gradient."""
    passes = step.find_before("backward", "grad")
    has_only_leaves = all("leaf" in step.sequence.events[i].flags for i in passes)
    return bool(passes) and has_only_leaves and "fresh" not in step.end_event.flags


def _lacks_gradient(step: OptimizerStep) -> bool:
    """Whether the step has no gradient, although no gradient was cleared after backward().

    Only a step with a forward pass counts. A step with a call of ``torch.autograd.grad`` does not
    count, because the program may use the returned gradients itself.
    """
    last_zero_grad = max(step.find_before("zero"), default=-1)
    return (
        last_zero_grad < step.last_backward_position
        and "none" in step.end_event.flags
        and bool(step.find_before("forward"))
        and not step.find_before("grad")
    )


def _trailing_steps_without_gradient(
    settings: LossDetachedSettings, steps: tuple[OptimizerStep, ...]
) -> tuple[OptimizerStep, ...]:
    """Return the steps without a gradient if they are the last steps of the training.

    () if there are too few such steps, or if a later step has a gradient.
    """
    steps_without_gradient = tuple(filter(_lacks_gradient, steps))
    if count_steps(steps_without_gradient) < settings.min_steps_at_end:
        return ()
    last_step_with_gradient = max(
        (s.sequence.last_step for s in steps if s not in steps_without_gradient), default=0
    )
    return (
        steps_without_gradient
        if last_step_with_gradient < first_step_of(steps_without_gradient)
        else ()
    )


def _is_any_parameter_reached(trace: Trace, start_step: int) -> bool:
    """Whether a gradient reached any parameter at step ``start_step`` or later.

    If ``start_step`` is above 1, parameters of optimizers do not count: they usually had gradients
    before, and ``has_had_gradient`` stays True. Other parameters count even if their gradient is
    older than ``start_step``.
    """
    return any(
        parameter.has_had_gradient
        and (start_step == 1 or parameter.index not in membership.optimized)
        for membership in trace.memberships
        if membership.step >= start_step or membership is trace.membership
        for parameter in membership.parameters
    )


def _detect_unreached_networks(
    rule: Rule[LossDetachedSettings], trace: Trace
) -> tuple[TraceFinding, ...]:
    """Detect networks whose outputs a training loss uses, but that no gradient reaches."""
    membership, unreached = trace.membership, unreached_parameters(trace, rule.settings.reach)
    if membership is None:
        return ()
    first_loss_by_network = {r.network: r for r in reversed(trace.losses) if r.is_learning}
    findings = []
    for network in membership.networks:
        parameters = set(network.parameters) & membership.optimized
        loss = first_loss_by_network.get(network.index)
        if loss is None or not parameters or not parameters <= unreached:
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=loss.step + 1,
                what=f"{loss.kind} is computed from the outputs of {network.name} with autograd "
                "enabled, but no backward pass reaches the network's "
                f"{pluralize(len(parameters), 'parameter')}; other parameters receive gradients.",
                cause="The program calls backward() on a new tensor with the value of the loss "
                "(item(), torch.tensor, detach()), so the network does not learn.",
                fix="Add the tensors that the loss functions return, with + or torch.stack. Do not "
                "convert them to numbers.",
                num_parameters=len(parameters),
            )
        )
    return tuple(findings)


def _judge(rule: Rule[LossDetachedSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = list(_detect_unreached_networks(rule, trace))
    steps_by_optimizer = {o: steps_of(trace, o) for o in stepping_optimizers(trace)}
    is_gradient_always_missing = all(
        steps and all(map(_lacks_gradient, steps)) for steps in steps_by_optimizer.values()
    )
    for optimizer, steps in steps_by_optimizer.items():
        leaf_steps = tuple(filter(_starts_at_leaf, steps))
        steps_without_gradient = leaf_steps or (steps if is_gradient_always_missing else ())
        if not steps_without_gradient and len(steps_by_optimizer) == 1:
            steps_without_gradient = _trailing_steps_without_gradient(rule.settings, steps)
        if count_steps(steps_without_gradient) < rule.settings.min_steps or (
            not leaf_steps
            and _is_any_parameter_reached(trace, first_step_of(steps_without_gradient))
        ):
            continue
        reason = "started at a tensor without a graph" if leaf_steps else "reached no parameter"
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(steps_without_gradient),
                what=f"{optimizer_name(trace, optimizer)}: in "
                f"{count_steps(steps_without_gradient)} of {count_steps(steps)} steps backward() "
                f"{reason}; these steps had no new gradient.",
                cause="The loss was detached from the network (detach(), item(), a new tensor) "
                "and then set to require a gradient, so nothing learns.",
                fix="Call backward() on the loss that is computed from the network; remove "
                "requires_grad_() and detach().",
                num_steps_without_gradient=count_steps(steps_without_gradient),
                num_steps=count_steps(steps),
            )
        )
    return tuple(findings)


LOSS_DETACHED = Rule(
    name="the loss is connected to the parameters",
    fault="detached loss",
    priority=180,
    requires="Two steps that follow a backward pass.",
    contradicted_by="A new gradient at the step.",
    abstains="Backward passes start at a tensor with a graph, and one of these conditions holds: "
    "another optimizer had gradients, the gradients were cleared between backward() and step(), "
    "or a parameter outside all optimizers received a gradient.",
    settings=LossDetachedSettings(),
    judge=_judge,
)
