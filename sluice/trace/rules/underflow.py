"""Are gradients of 16 bits large enough to be told from zero?"""

from sluice.trace.evidence.measures import OptimizerMeasure
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing
from sluice.trace.rules.series import facts_of, measures_of, names_in, weights_of
from sluice.trace.rules.steps import name_of, optimizers_in, own_steps

_LEAST = 2
"""Measured steps."""

_SHARE = 0.5
"""Of the weights whose whole gradient is zero."""


def _is_half(trace: Trace, step: int, own: OptimizerMeasure) -> bool:
    facts = facts_of(trace)
    if any(facts[p].dtype == "float16" for p in own.parameters if p in facts):
        return True
    outputs = (m.outputs for m in trace.measures if m.step == step)
    return any(o.dtype == "float16" for found in outputs for o in found)


def _last_scaled(trace: Trace, optimizer: int) -> int:
    """Return the last step of an optimizer on a loss that was scaled; 0 for none."""
    return max(
        (
            s.word.last_step
            for s in own_steps(trace, optimizer)
            if any("scaled" in mark.flags for mark in s.word.marks)
        ),
        default=0,
    )


def _zeros(trace: Trace, own: OptimizerMeasure) -> list[int]:
    return [own.parameters[i] for i in weights_of(trace, own) if own.grad_norms[i] == 0]


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    losses = {n.step: n.losses for n in trace.numbers}
    names = names_in(trace)
    found = []
    for optimizer in optimizers_in(trace):
        scaled = _last_scaled(trace, optimizer)
        measured = [
            (step, own)
            for step, own in measures_of(trace, optimizer)
            if step > scaled
            and _is_half(trace, step, own)
            and any(loss != 0 for loss in losses.get(step, (1.0,)))
        ]
        empty = [
            (step, zeros)
            for step, own in measured
            if len(zeros := _zeros(trace, own)) >= _SHARE * len(list(weights_of(trace, own))) > 0
        ]
        if len(empty) < max(_LEAST, len(measured) / 2):
            continue
        step, zeros = empty[0]
        found.append(
            rule.finding(
                severity="error",
                step=step,
                what=f"{name_of(trace, optimizer)}: at {len(empty)} of {len(measured)} measured "
                f"steps the gradients of {len(zeros)} weights are exactly zero, in half "
                f"precision and without a gradient scaler: {listing([names[p] for p in zeros])}.",
                cause="Numbers under 6e-8 are zero in half precision: the gradient is lost before "
                "the step.",
                fix="Scale the loss with torch.amp.GradScaler, or use bfloat16.",
                num_empty=len(empty),
                num_measured=len(measured),
                num_weights=len(zeros),
            )
        )
    return tuple(found)


UNDERFLOW = Rule(
    name="gradients of half precision are scaled",
    fault="gradients underflow",
    requirement="TRACE-10",
    requires="Two measured steps of parameters or outputs in half precision.",
    contradicted_by="A gradient that is not zero in half of the weights.",
    abstains="A gradient scaler is used from there on, or the loss is zero.",
    judge=_judge,
)
