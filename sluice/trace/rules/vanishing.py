"""Does enough of the gradient reach the first layers?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import measures_of, names_in, weights_of
from sluice.trace.rules.steps import name_of, optimizers_in

_LEAST = 4
"""Measured steps, and weights."""

_SMALLEST = 1e-6
"""Of the largest gradient, each for the size of its weight."""

_DIRECTION = ".parametrizations."
"""In the name of a weight that is only part of one: that of a direction alone has no gradient along
itself, so none at all where it is a single number."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    names = names_in(trace)
    found = []
    for optimizer in optimizers_in(trace):
        measured = measures_of(trace, optimizer)
        shown: list[tuple[int, int, float]] = []
        for step, own in measured:
            places = [
                i
                for i in weights_of(trace, own)
                if own.weight_norms[i] > 0 and _DIRECTION not in names[own.parameters[i]]
            ]
            ratios = {i: own.grad_norms[i] / own.weight_norms[i] for i in places}
            if len(ratios) < _LEAST:
                continue
            least = min(ratios, key=lambda i: ratios[i])
            if 0 < ratios[least] < _SMALLEST * max(ratios.values()):
                share = ratios[least] / max(ratios.values())
                shown.append((step, own.parameters[least], share))
        if len(shown) < max(_LEAST, 0.8 * len(measured)):
            continue
        step, parameter, share = shown[0]
        found.append(
            rule.finding(
                severity="warning",
                step=step,
                what=f"{name_of(trace, optimizer)}: at {len(shown)} of {len(measured)} measured "
                f"steps the gradient of {names[parameter]} is {share:.1e} of the largest one.",
                cause="It loses its size from layer to layer: what is far from the loss does not "
                "learn.",
                fix="Use residual connections, a norm, or an activation that does not saturate.",
                share=share,
                num_shown=len(shown),
            )
        )
    return tuple(found)


VANISHING = Rule(
    name="gradients keep their size from layer to layer",
    fault="vanishing gradients",
    requirement="TRACE-8",
    requires="Four measured steps with four weights.",
    contradicted_by="A gradient of the weight as large as the others', each for its size.",
    abstains="Gradients are exactly zero: other rules say why; weights of a parametrization.",
    judge=_judge,
)
