"""Is every parameter that gets gradients in an optimizer?"""

from collections import Counter
from collections.abc import Collection, Iterable

from sluice.trace.evidence.membership import Membership, ParameterFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import has_manual_gradients, listing, names_of, untrained
from sluice.trace.rules.parameters_replaced import PARAMETERS_REPLACED
from sluice.trace.rules.steps import optimizers_in


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None or not optimizers_in(trace) or has_manual_gradients(trace):
        return ()
    # What an earlier optimizer moved is done with, as the weights that a first phase learned.
    once = frozenset[int]().union(*(m.optimized for m in trace.memberships))
    outside = [p for p in untrained(now) if p.index not in once]
    stepping = {o.index for o in now.optimizers} & set(optimizers_in(trace))
    if not outside or PARAMETERS_REPLACED(trace) or _have_copies(now, outside, stepping):
        return ()
    indices = {p.index for p in outside}
    step = next(
        m.step for m in trace.memberships if {p.index for p in m.parameters if p.names} & indices
    )
    return (
        rule.finding(
            severity="confirm",
            step=step,
            what=f"{_who(len(outside))} in no optimizer: {listing(names_of(outside))}.",
            cause="They keep their first values; their gradients are computed for nothing.",
            fix="Give them to the optimizer; if they are meant to rest, set requires_grad to "
            "False, which is also faster.",
            num_outside=len(outside),
            num_parameters=len(now.parameters),
        ),
    )


def _have_copies(
    now: Membership, outside: Iterable[ParameterFact], stepping: Collection[int]
) -> bool:
    """Tell whether optimizers that step hold tensors of these shapes that no network has: masters.

    One that never steps may be that of a network that is not used.
    """
    held = {
        p for o in now.optimizers if o.index in stepping for g in o.groups for p in g.parameters
    }
    masters = Counter(p.shape for p in now.parameters if not p.names and p.index in held)
    return not Counter(p.shape for p in outside) - masters


def _who(num: int) -> str:
    return (
        "1 parameter gets gradients and is"
        if num == 1
        else f"{num} parameters get gradients and are"
    )


PARAMETERS_OUTSIDE = Rule(
    name="every parameter that gets gradients is in an optimizer",
    fault="parameters outside the optimizer",
    requirement="TRACE-9",
    requires="The membership at a step.",
    contradicted_by="Parameters that are meant to rest, of which only the gradients are wanted.",
    abstains="Gradients are set by hand; a replaced layer explains it; they were in an optimizer "
    "before; or an optimizer holds copies of them, as in mixed precision by hand.",
    judge=_judge,
)
