"""Are gradients finite where the loss is?"""

import math

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import losses_of, measures_of, names_in
from sluice.trace.rules.steps import optimizers_in


def _first(trace: Trace) -> tuple[int, float, list[int], int] | None:
    """Return step, loss, parameters and number of gradients of the first that is not finite."""
    found = [
        (g.step, g.loss, list(g.parameters), g.num_gradients)
        for g in trace.gradients
        if math.isfinite(g.loss) and g.parameters
    ]
    losses = dict(losses_of(trace))
    for optimizer in optimizers_in(trace):
        for step, own in measures_of(trace, optimizer):
            bad = [
                p
                for p, norm in zip(own.parameters, own.grad_norms, strict=True)
                if not math.isfinite(norm)
            ]
            if bad and math.isfinite(losses.get(step, math.nan)):
                found.append((step, losses[step], bad, len(own.parameters)))
    return min(found, key=lambda f: f[0], default=None)


def _nearest(trace: Trace, bad: list[int]) -> int:
    """Return the parameter that is used last: the trap is behind it, and spoils what is before."""
    calls = [call for flow in trace.flows[:4] for call in flow.calls]
    names = {call.module for call in calls}
    # Where a module with others inside of it uses parameters of its own, its call does not tell.
    order = [
        p
        for call in calls
        if call.module and not any(name.startswith(f"{call.module}.") for name in names)
        for p in call.parameters
    ]
    place = {p: i for i, p in enumerate(order)}
    return max(bad, key=lambda p: (place.get(p, -1), p))


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = _first(trace)
    if found is None:
        return ()
    step, loss, bad, num = found
    first_bad_loss = next((s for s, v in losses_of(trace) if not math.isfinite(v)), step + 1)
    if first_bad_loss < step:
        return ()
    nearest = _nearest(trace, bad)
    name = names_in(trace).get(nearest, f"parameter {nearest}")
    return (
        rule.finding(
            severity="error",
            step=step,
            what=f"At step {step} the loss is finite ({loss:.4g}) and the gradients of "
            f"{len(bad)} of {num} parameters are not; the one nearest to the loss is {name}.",
            cause="Behind it stands a function whose slope has no limit where it was used: sqrt or "
            "a norm at 0, log of 0, or a torch.where whose unused side is not finite.",
            fix="Keep the number away from that point before the function: clamp it, add a small "
            "number inside of the root, or choose the input with torch.where, not the output.",
            loss=loss,
            num_parameters=len(bad),
            num_gradients=num,
        ),
    )


NON_FINITE_GRADIENT = Rule(
    name="gradients are finite where the loss is",
    fault="non-finite gradient",
    requirement="TRACE-8",
    requires="The gradients after a backward pass of a loss that is finite.",
    contradicted_by="A loss that was not finite before.",
    abstains="The loss went through a gradient scaler, which may overflow.",
    judge=_judge,
)
