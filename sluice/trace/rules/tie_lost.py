"""Do parameters that were one stay one?"""

from itertools import combinations, pairwise

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.series import facts_of, names_in, values_by_parameter

_LEAST_ROWS = 8
_FIX = "Set the output weight to the embedding's own weight after every change of either."


def _split(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    for before, after in pairwise(trace.memberships):
        places = {name: p.index for p in after.parameters for name in p.names}
        for tied in before.parameters:
            for one, other in combinations(tied.names, 2):
                if one in places and other in places and places[one] != places[other]:
                    return (
                        rule.finding(
                            severity="error",
                            step=after.step,
                            what=f"{one} and {other} were one parameter up to step "
                            f"{after.step - 1}, and are two now.",
                            cause="They drift apart from here on.",
                            fix=_FIX,
                            num_names=len(tied.names),
                        ),
                    )
    return ()


def _rebuilt(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of a network that was made anew and given a state, and lacks the tie of the first."""
    networks = {n.index: n for m in trace.memberships for n in m.networks}
    loaded = {(load.kind, load.step) for load in trace.loads if load.what == "network"}
    seen: dict[str, dict[str, int]] = {}
    for network in networks.values():
        own = network.name + "."
        names = {
            name.removeprefix(own): p.index
            for m in trace.memberships
            for p in m.parameters
            for name in p.names
            if name.startswith(own)
        }
        first = seen.setdefault(network.kind, names)
        steps = [step for kind, step in loaded if kind == network.kind and step]
        if first is names or first.keys() != names.keys() or not steps:
            continue
        for one, other in combinations(sorted(names), 2):
            if first[one] == first[other] and names[one] != names[other]:
                return (
                    rule.finding(
                        severity="error",
                        step=min(steps) + 1,
                        what=f"{one} and {other} are one parameter of the first {network.kind}, "
                        f"and two of {network.name}, which was made anew and given a state.",
                        cause="They drift apart from here on.",
                        fix=_FIX,
                        num_names=len(names),
                    ),
                )
    return ()


def _copied(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of an embedding whose numbers another weight of its network began with."""
    facts, values, names = facts_of(trace), values_by_parameter(trace), names_in(trace)
    embeddings = {
        p for f in trace.flows for c in f.calls if c.kind == "Embedding" for p in c.parameters
    }
    for network in trace.memberships[0].networks if trace.memberships else ():
        own = [p for p in network.parameters if p in values and p in facts]
        for table in (p for p in own if p in embeddings):
            for other in (p for p in own if p not in embeddings):
                one, two = values[table][0], values[other][0]
                if (
                    facts[table].shape == facts[other].shape
                    and facts[table].is_trainable
                    and facts[other].is_trainable
                    and facts[table].shape[0] >= _LEAST_ROWS
                    and (one.fingerprint, one.step) == (two.fingerprint, two.step)
                    and one.num_different > 1
                ):
                    return (
                        rule.finding(
                            severity="error",
                            step=one.step,
                            confidence=0.95,
                            what=f"{names[table]} and {names[other]} began with the same "
                            f"{facts[table].shape[0]} x {facts[table].shape[1]} numbers, and are "
                            "two parameters.",
                            cause="The tie of the output to the embedding was lost in a copy: "
                            "they drift apart from the first step on.",
                            fix=_FIX,
                            num_rows=facts[table].shape[0],
                        ),
                    )
    return ()


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    return _split(rule, trace) or _rebuilt(rule, trace) or _copied(rule, trace)


TIE_LOST = Rule(
    name="tied parameters stay tied",
    fault="tie lost",
    requirement="TRACE-16",
    requires="Two memberships; or the numbers of an embedding and of an output weight.",
    contradicted_by="An output layer that was meant to begin as a copy of the embedding.",
    abstains="The copied weight is of two layers of one kind, as those of a transformer are.",
    judge=_judge,
)
