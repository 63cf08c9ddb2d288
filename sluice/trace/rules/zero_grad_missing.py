"""Are gradients cleared from one step to the next?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.steps import first, name_of, optimizers_in, own_steps, total

_LEAST = 2
"""Steps; one alone may be the last of a group of batches."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for optimizer in optimizers_in(trace):
        steps = own_steps(trace, optimizer)
        carried = tuple(s for s in steps if s.end.kind == "step" and "carried" in s.end.flags)
        num, of = total(carried), total(steps)
        # The first step of all cannot carry anything.
        if num < _LEAST or num < (of - 1) / 2 or any(s.before("grad") for s in steps):
            continue
        found.append(
            rule.finding(
                severity="confirm",
                step=first(carried),
                what=f"{name_of(trace, optimizer)}: {num} of {of} steps were made on gradients "
                "that nothing had cleared since the step before.",
                cause="Every step uses the sum of the gradients of all batches so far.",
                fix="Call optimizer.zero_grad() once for each step, before backward().",
                num_carried=num,
                num_steps=of,
            )
        )
    return tuple(found)


ZERO_GRAD_MISSING = Rule(
    name="gradients are cleared between two steps",
    fault="gradients carried over",
    requirement="TRACE-13",
    requires="Two steps of one optimizer.",
    contradicted_by="A sum over steps that is meant, as momentum made by hand.",
    abstains="Gradients are set by hand (torch.autograd.grad), or the optimizer has a closure.",
    judge=_judge,
)
