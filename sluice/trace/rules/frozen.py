"""Is what is frozen meant to be?"""

import math

from sluice.trace.evidence.membership import NetworkFact, ParameterFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing
from sluice.trace.rules.modes import learning_networks

_LEAST = 2
"""Frozen weights."""
_LEAST_INSIDE, _MOSTLY = 4, 0.9
"""Frozen weights between two that learn, and their share of all numbers in weights."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    facts = {p.index: p for p in now.parameters}
    found = []
    for network in learning_networks(trace):
        own = [facts[p] for p in network.parameters if p in facts]
        weights = [p for p in own if len(p.shape) >= 2]
        frozen = [p for p in weights if not p.is_trainable]
        resting = [p for p in own if not p.is_trainable]
        inner = _inside(trace, network, weights)
        if inner:
            found.append(_between(rule, trace, network, inner, weights))
            continue
        if len(frozen) < max(_LEAST, len(weights)) or len(resting) == len(own):
            continue
        step = next(
            m.step
            for m in trace.memberships
            if {p.index for p in m.parameters if not p.is_trainable} >= {p.index for p in frozen}
        )
        found.append(
            rule.finding(
                severity="confirm",
                step=step,
                what=f"{network.name}: {len(resting)} of {len(own)} parameters do not learn, all "
                f"{len(weights)} weights among them, the last one too: "
                f"{listing([p.names[0] for p in reversed(frozen)])}.",
                cause="Only norms and biases learn; the output layer keeps its first values.",
                fix="Set requires_grad to True for the output layer, or for all that should learn.",
                num_frozen=len(resting),
                num_parameters=len(own),
            )
        )
    return tuple(found)


def _inside(
    trace: Trace, network: NetworkFact, weights: list[ParameterFact]
) -> list[ParameterFact]:
    """Return the weights that rest between a first and a last one that learn; mostly, or none."""
    flow = next((f for f in reversed(trace.flows) if f.network == network.index), None)
    facts = {p.index: p for p in weights}
    order = dict.fromkeys(p for c in (flow.calls if flow else ()) for p in c.parameters)
    called = [facts[p] for p in order if p in facts]
    if len(called) != len(weights) or len(called) < _LEAST_INSIDE + 2:
        return []
    inner = called[1:-1]
    is_sandwich = called[0].is_trainable and called[-1].is_trainable
    if not is_sandwich or any(p.is_trainable for p in inner):
        return []
    size = sum(math.prod(p.shape) for p in inner)
    return inner if size >= _MOSTLY * sum(math.prod(p.shape) for p in called) else []


def _between(
    rule: Rule,
    trace: Trace,
    network: NetworkFact,
    inner: list[ParameterFact],
    weights: list[ParameterFact],
) -> Finding:
    indices = {p.index for p in inner}
    step = next(
        m.step
        for m in trace.memberships
        if {p.index for p in m.parameters if not p.is_trainable} >= indices
    )
    return rule.finding(
        severity="confirm",
        step=step,
        what=f"{network.name}: the first and the last of {len(weights)} weights learn, and all "
        f"{len(inner)} between them rest: {listing([p.names[0] for p in inner if p.names])}.",
        cause="A test by name or by kind that freezes norms or a backbone met more than it should.",
        fix="Set requires_grad to True for what should learn, and print what does.",
        num_frozen=len(inner),
        num_parameters=len(network.parameters),
    )


FROZEN = Rule(
    name="some weight of a network learns",
    fault="frozen by mistake",
    requirement="TRACE-16",
    requires="The membership at a step of a network that learns.",
    contradicted_by="A tuning of norms or biases alone, that is meant.",
    abstains="Any weight but the first and the last learns, or the last alone, as a head on a "
    "frozen backbone does.",
    judge=_judge,
)
