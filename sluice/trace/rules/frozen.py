"""Is what is frozen meant to be?"""

import math
from collections.abc import Mapping

from sluice.trace.evidence.membership import MisnamedFact, NetworkFact, ParameterFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.evidence.values import ValueFact
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing, since_named
from sluice.trace.rules.modes import learning_networks
from sluice.trace.rules.series import values_by_parameter

_LEAST = 2
"""Frozen weights."""
_LEAST_NUMBERS, _REACHED = 256, 0.95
"""Of a weight whose largest number tells how it was drawn: that is hardly ever below this share of
the bound."""
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
        meant = [m for m in network.misnamed if m.value and _rest(m, facts)]
        if meant:
            found.append(_misnamed(rule, trace, network, meant))
            continue
        inner = _inside(trace, network, weights)
        if inner:
            found.append(_between(rule, trace, network, inner, weights))
            continue
        drawn = _as_drawn(trace, frozen)
        if drawn and len(frozen) < len(weights):
            found.append(_never_learned(rule, trace, network, drawn, frozen))
            continue
        if len(frozen) < max(_LEAST, len(weights)) or len(resting) == len(own):
            continue
        found.append(
            rule.finding(
                severity="confirm",
                step=_since(trace, frozen),
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


def _rest(misnamed: MisnamedFact, facts: Mapping[int, ParameterFact]) -> bool:
    own = [facts[p] for p in misnamed.parameters if p in facts]
    return bool(own) and not any(p.is_trainable for p in own)


def _misnamed(rule: Rule, trace: Trace, network: NetworkFact, meant: list[MisnamedFact]) -> Finding:
    first = meant[0]
    is_module = first.attribute == "requires_grad"
    return rule.finding(
        severity="confirm" if is_module else "error",
        step=since_named(trace, meant),
        what=f"{network.name}: {listing([m.owner for m in meant])} "
        f"{'has' if len(meant) == 1 else 'have'} {first.attribute} = True, and "
        f"{'nothing in it' if is_module else 'it'} learns.",
        cause="torch reads requires_grad of parameters alone; on a module it is a name like any "
        "other."
        if is_module
        else f"torch never reads {first.attribute}; the name is "
        "requires_grad, and Python takes any.",
        fix="Call requires_grad_(True), of a module or of a parameter: a wrong name raises.",
        num_frozen=len({p for m in meant for p in m.parameters}),
        num_parameters=len(network.parameters),
    )


def _as_drawn(trace: Trace, frozen: list[ParameterFact]) -> list[ParameterFact]:
    """Return weights that rest in an optimizer and are as they were drawn, if most of these are.

    Uniform numbers reach the bound of their initialisation, and those that learned pass it.
    """
    optimized = trace.membership.optimized if trace.membership is not None else frozenset()
    held = [p for p in frozen if p.index in optimized and not p.has_had_gradient]
    values = values_by_parameter(trace)
    drawn = [p for p in held if values.get(p.index) and _is_uniform(p, values[p.index][-1])]
    return drawn if len(drawn) >= max(_LEAST, len(held) / 2) else []


def _is_uniform(fact: ParameterFact, value: ValueFact) -> bool:
    inside = math.prod(fact.shape[1:])
    if math.prod(fact.shape) < _LEAST_NUMBERS:
        return False
    outside = fact.shape[0] * inside / fact.shape[1]
    size = max(-value.smallest, value.largest)
    bounds = inside**-0.5, (6 / inside) ** 0.5, (6 / (inside + outside)) ** 0.5
    return any(_REACHED * bound <= size <= bound * (1 + 1e-4) for bound in bounds)


def _never_learned(
    rule: Rule,
    trace: Trace,
    network: NetworkFact,
    drawn: list[ParameterFact],
    frozen: list[ParameterFact],
) -> Finding:
    return rule.finding(
        severity="confirm",
        step=_since(trace, drawn),
        what=f"{network.name}: {len(frozen)} weights that the optimizer was given rest, and at "
        f"least {len(drawn)} of them are as torch drew them: "
        f"{listing([p.names[0] for p in drawn if p.names])}.",
        cause="A backbone that was never loaded nor trained is frozen, and was perhaps to be set "
        "free again.",
        fix="Load its weights, or call requires_grad_(True) where it should learn, and print how "
        "many parameters do.",
        num_frozen=len(frozen),
        num_parameters=len(network.parameters),
    )


def _since(trace: Trace, frozen: list[ParameterFact]) -> int:
    """Return the step since which they rest."""
    indices = {p.index for p in frozen}
    return next(
        m.step
        for m in trace.memberships
        if {p.index for p in m.parameters if not p.is_trainable} >= indices
    )


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
    return rule.finding(
        severity="confirm",
        step=_since(trace, inner),
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
    requires="The membership at a step of a network that learns; attributes that look like "
    "requires_grad, and are not.",
    contradicted_by="A tuning of norms or biases alone, that is meant.",
    abstains="Any weight but the first and the last learns, or the last alone, as a head on a "
    "frozen backbone does that was loaded, or that no optimizer holds.",
    judge=_judge,
)
