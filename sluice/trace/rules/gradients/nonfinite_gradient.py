"""Detects non-finite gradients of a finite loss."""

import math

from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import measurements_of, parameter_names, step_losses
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers


def _find_first_nonfinite_gradient(trace: Trace) -> tuple[int, float, list[int], int] | None:
    """Return the first step with a non-finite gradient of a finite loss; None without one.

    The step is returned as (step, loss, parameters with a non-finite gradient, number of parameters
    with a gradient).
    """
    candidates = [
        (g.step, g.loss, list(g.parameters), g.num_gradients)
        for g in trace.nonfinite_gradients
        if math.isfinite(g.loss) and g.parameters
    ]
    losses = dict(step_losses(trace))
    for optimizer in stepping_optimizers(trace):
        for step, statistics in measurements_of(trace, optimizer):
            parameters = [
                p
                for p, norm in zip(statistics.parameters, statistics.grad_norms, strict=True)
                if not math.isfinite(norm)
            ]
            if parameters and math.isfinite(losses.get(step, math.nan)):
                candidates.append((step, losses[step], parameters, len(statistics.parameters)))
    return min(candidates, key=lambda candidate: candidate[0], default=None)


def _find_parameter_closest_to_loss(trace: Trace, parameters: list[int]) -> int:
    """Return which of the parameters with a non-finite gradient the network uses last.

    The operation that causes the non-finite gradient comes after this parameter, because
    backpropagation spreads such a gradient to all earlier parameters.
    """
    # A few passes suffice, because the order of calls rarely changes.
    calls = [call for forward_pass in trace.forward_passes[:4] for call in forward_pass.calls]
    module_names = {call.module for call in calls}
    # Modules with submodules are left out: a call does not show when their own parameters are used.
    parameters_in_order = [
        p
        for call in calls
        if call.module and not any(name.startswith(f"{call.module}.") for name in module_names)
        for p in call.parameters
    ]
    positions = {p: i for i, p in enumerate(parameters_in_order)}
    return max(parameters, key=lambda p: (positions.get(p, -1), p))


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    first = _find_first_nonfinite_gradient(trace)
    if first is None:
        return ()
    step, loss, parameters, num_gradients = first
    # Not reported after a non-finite loss, which may have made weights and gradients non-finite.
    if any(s < step and not math.isfinite(v) for s, v in step_losses(trace)):
        return ()
    closest_parameter = _find_parameter_closest_to_loss(trace, parameters)
    name = parameter_names(trace).get(closest_parameter, f"parameter {closest_parameter}")
    return (
        rule.finding(
            severity="error",
            step=step,
            what=f"The loss at step {step} is finite ({loss:.4g}), but the gradients of "
            f"{len(parameters)} of {num_gradients} parameters are not. Of these parameters, {name} "
            "is closest to the loss.",
            cause="The derivative of an operation after this parameter is infinite or undefined: "
            "sqrt or a norm at 0, log of 0, or a torch.where whose unused branch is not finite.",
            fix="Keep the input of this operation away from 0: clamp it, or add a small constant "
            "inside the root. Apply torch.where to the input instead of the output.",
            loss=loss,
            num_parameters=len(parameters),
            num_gradients=num_gradients,
        ),
    )


NONFINITE_GRADIENT = Rule(
    name="gradients of a finite loss are finite",
    fault="non-finite gradient",
    priority=220,
    requires="The gradients of a backward pass of a finite loss.",
    contradicted_by="A loss that was non-finite at an earlier step.",
    abstains="The loss went through a gradient scaler, which may overflow.",
    settings=NoThresholds(),
    judge=_judge,
)
