"""Do the units of a layer begin with different numbers?"""

from collections.abc import Collection, Sequence

from sluice.trace.evidence.membership import ParameterFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.evidence.values import ValueFact
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing
from sluice.trace.rules.series import (
    facts_of,
    measures_of,
    moved,
    names_in,
    values_by_parameter,
)
from sluice.trace.rules.steps import optimizers_in

_LEAST_ROWS = 4
_LEAST_LOOKS = 3
_LATEST = 4
"""Steps after which the rows of a layer that learns are no more the same."""

_KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "GRU", "LSTM", "RNN", "Bilinear")

_MOST_GATES = 4
"""Blocks of equal rows: a recurrent layer has one for each of its gates."""


_FIX = (
    "Begin with different numbers: torch's own initialisation, or nn.init.xavier_uniform_ or "
    "kaiming_uniform_ for weights; zero is for biases."
)


def _is_equal(value: ValueFact) -> bool:
    blocks = min(_MOST_GATES, value.num_rows // _LEAST_ROWS)
    return value.num_rows >= _LEAST_ROWS and 1 <= value.num_different <= max(blocks, 1)


def _stays_equal(fact: ParameterFact, values: tuple[ValueFact, ...]) -> bool:
    """All rows were the same when it was first seen, and are at every later look."""
    return (
        fact.is_trainable
        and bool(fact.names)
        and len(values) >= _LEAST_LOOKS
        and values[-1].step > values[0].step + _LATEST
        and values[0].num_different == 1
        and all(map(_is_equal, values))
    )


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    found = _equal(rule, trace)
    return found or _filled(rule, trace)


def _filled(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of weights that began with one number everywhere, if rows of others part them later.

    Zero is a good start for the last layer of a branch. Of layers one behind the other it is not:
    the gradient of the first is zero until those behind it have moved, step by step.
    """
    now = trace.membership
    if now is None:
        return ()
    facts, names, values = facts_of(trace), names_in(trace), values_by_parameter(trace)
    layers = {p for f in trace.flows for c in f.calls if c.kind in _KINDS for p in c.parameters}
    others = [c.parameters for f in trace.flows for c in f.calls if c.kind not in _KINDS]
    zero_steps: dict[int, set[int]] = {}
    for optimizer in optimizers_in(trace):
        for step, own in measures_of(trace, optimizer):
            for p, norm in zip(own.parameters, own.grad_norms, strict=True):
                if norm == 0 and max(own.rates) > 0:
                    zero_steps.setdefault(p, set()).add(step)
    filled = []
    stuck = set[int]()
    for p in sorted(now.optimized):
        fact, first = facts.get(p), values.get(p, ())[:1]
        if fact is None or not first or not fact.is_trainable or not fact.names:
            continue
        if first[0].num_different != 1 or min(fact.shape[:2], default=0) < _LEAST_ROWS:
            continue
        value = first[0]
        if value.smallest == value.largest == 0:
            stuck |= {p} if {value.step, value.step + 1} <= zero_steps.get(p, set()) else set()
        elif value.step == 1 and value.smallest == value.largest and p in layers:
            filled.append(p)
    # Of the factors of a product, as those of LoRA, one may begin at zero.
    filled += {p for p in stuck if p in layers or any(_are_factors(stuck, p, c) for c in others)}
    if not filled:
        return ()
    filled.sort()
    told, step = values[filled[0]][0].largest, min(values[p][0].step for p in filled)
    return (
        rule.finding(
            severity="error",
            step=step,
            confidence=0.95,
            what=f"{len(filled)} weights began with one number everywhere ({told:.3g} in the "
            f"first): {listing([names[p] for p in filled])}.",
            cause="All units of a layer begin as one, and only their biases tell them apart.",
            fix=_FIX,
            num_weights=len(filled),
        ),
    )


def _are_factors(stuck: Collection[int], parameter: int, own: Sequence[int]) -> bool:
    """Tell whether a module of one's own has this parameter and another one, both at zero."""
    return parameter in own and sum(p in stuck for p in own) > 1


def _equal(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of weights whose rows are the same, and stay so."""
    now = trace.membership
    if now is None:
        return ()
    facts, changed, names = facts_of(trace), moved(trace), names_in(trace)
    values = values_by_parameter(trace)
    learning = changed & now.optimized
    graded = {p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient}
    equal = [
        p
        for p, seen in values.items()
        if p in now.optimized and p in graded and p in facts and _stays_equal(facts[p], seen)
    ]
    # A learning rate of zero leaves every weight as it was.
    if not equal or not learning:
        return ()
    still = [p for p in equal if p not in changed]
    first = min(values[p][0].step for p in equal)
    rows = values[equal[0]][-1].num_rows
    return (
        rule.finding(
            severity="error",
            step=first,
            what=f"In {len(equal)} weights all rows are the same from step {first} to step "
            f"{max(values[p][-1].step for p in equal)}: {listing([names[p] for p in equal])} "
            f"({rows} rows in the first)"
            + (f"; {len(still)} never moved at all." if still else "."),
            cause="All units of a layer compute the same and get the same gradient: the layer is "
            "worth one unit.",
            fix=_FIX,
            num_weights=len(equal),
            num_still=len(still),
        ),
    )


CONSTANT_START = Rule(
    name="units of a layer begin with different numbers",
    fault="constant initialisation",
    requirement="TRACE-8",
    requires="Three looks at a weight with four rows or more, and some parameter that learns.",
    contradicted_by="Rows that differ at any look.",
    abstains="The rows part after the first steps, as those of a zero-initialised output or of "
    "LoRA do; or nothing learns.",
    judge=_judge,
)
