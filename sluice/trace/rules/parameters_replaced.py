"""Does the optimizer hold the parameters that the network has now?"""

from sluice.base.pluralize import counted
from sluice.trace.evidence.membership import OptimizerFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import (
    has_manual_gradients,
    listing,
    names_of,
    orphans,
    untrained,
)
from sluice.trace.rules.steps import optimizers_in, own_steps, total


def _since(trace: Trace, parameters: set[int]) -> int:
    """Return the first step at which some parameters were there and outside of the optimizers."""
    return next(
        m.step
        for m in trace.memberships
        if {p.index for p in m.parameters if p.names} & parameters - m.optimized
    )


def _is_stale(trace: Trace, optimizer: OptimizerFact) -> bool:
    held = [p for group in optimizer.groups for p in group.parameters]
    lost = orphans(trace, optimizer)
    if not lost:
        return False
    if len(lost) < len(held):
        return True
    # All of them: of another network that was never called yet, unless it steps on nothing.
    steps = own_steps(trace, optimizer.index)
    return total(tuple(s for s in steps if "none" in s.end.flags)) >= 2


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None or has_manual_gradients(trace) or not untrained(now):
        return ()
    outside = untrained(now)
    found = []
    for optimizer in now.optimizers:
        if optimizer.index not in optimizers_in(trace) or not _is_stale(trace, optimizer):
            continue
        lost = orphans(trace, optimizer)
        found.append(
            rule.finding(
                severity="error",
                step=_since(trace, {p.index for p in outside}),
                what=f"{optimizer.kind} holds {counted(len(lost), 'parameter')} that no network "
                f"has any more, while {len(outside)} that get gradients are in no optimizer: "
                f"{listing(names_of(outside))}.",
                cause="A layer was replaced after the optimizer was made: the new one never "
                "learns.",
                fix="Make the optimizer after the network is complete, or give it the new "
                "parameters with add_param_group().",
                num_lost=len(lost),
                num_outside=len(outside),
            )
        )
    return tuple(found)


PARAMETERS_REPLACED = Rule(
    name="the optimizer holds the parameters that the network has now",
    fault="parameters replaced",
    requirement="TRACE-9",
    requires="The membership at a step.",
    contradicted_by="The parameters that the optimizer holds get gradients, or some network has "
    "them.",
    abstains="Gradients are set by hand, or no parameter with a gradient is outside.",
    judge=_judge,
)
