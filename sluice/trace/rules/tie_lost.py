"""Do parameters that were one stay one?"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

from sluice.trace.evidence.membership import Membership, NetworkFact, ParameterFact, TieFact
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
    embeddings = _embeddings(trace)
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
                    and all(said.value for said in _said(network, facts[table], facts[other]))
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


def _declared(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of a network that says it is tied, and began with two weights."""
    facts, names = facts_of(trace), names_in(trace)
    for membership, network in _beginnings(trace):
        own = {p.index: p for p in membership.parameters if p.index in network.parameters}
        if any(sum(n.startswith(network.name + ".") for n in p.names) > 1 for p in own.values()):
            continue
        for table, out in _ends(trace, network):
            if not _are_two(own.get(table), own.get(out)):
                continue
            said = _said(network, facts[table], facts[out])
            if said and all(s.value for s in said):
                return (
                    rule.finding(
                        severity="error",
                        step=membership.step,
                        confidence=0.97,
                        what=f"{said[0].owner} says {said[0].attribute} = True, and "
                        f"{names[table]} and {names[out]} are two parameters.",
                        cause="The tie was never made, or something replaced one of the two after "
                        "it was: they drift apart from the first step on.",
                        fix=_FIX,
                        num_rows=facts[table].shape[0],
                    ),
                )
    return ()


def _parted(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """Tell of two parameters in the places of one that was tied before the first step."""
    names, embeddings = names_in(trace), _embeddings(trace)
    for membership, network in _beginnings(trace):
        own = {p.index: p for p in membership.parameters}
        for new, other in network.parted:
            said = _said(network, own[new], own[other])
            if not _are_two(own[new], own[other]) or not all(s.value for s in said):
                continue
            return (
                rule.finding(
                    # A new output beside the old embedding may be meant.
                    severity="error" if new in embeddings else "confirm",
                    step=membership.step,
                    confidence=0.95,
                    what=f"{names[new]} and {names[other]} were one parameter when the network was "
                    f"made. {names[new]} was replaced before the first step, and they are two.",
                    cause="They drift apart from the first step on.",
                    fix=_FIX,
                    num_names=2,
                ),
            )
    return ()


def _embeddings(trace: Trace) -> set[int]:
    return {p for f in trace.flows for c in f.calls if c.kind == "Embedding" for p in c.parameters}


def _beginnings(trace: Trace) -> Iterator[tuple[Membership, NetworkFact]]:
    """Yield every network as it was first seen."""
    seen: set[int] = set()
    for membership in trace.memberships:
        for network in membership.networks:
            if network.index not in seen:
                seen.add(network.index)
                yield membership, network


def _ends(trace: Trace, network: NetworkFact) -> Iterator[tuple[int, int]]:
    """Yield each embedding that the first pass looked up once, with each weight it ended with.

    Others of the same shape are no output: positions, and layers in between. An embedding that is
    looked up twice may be what is said to be shared.
    """
    flow = next((f for f in trace.flows if f.network == network.index), None)
    calls = [c for c in flow.calls if c.module and c.parameters] if flow is not None else []
    tables = Counter(p for c in calls if c.kind == "Embedding" for p in c.parameters)
    last = next((c for c in reversed(calls) if c.kind == "Linear"), None)
    for table, times in tables.items():
        if last is not None and times == 1:
            yield from ((table, out) for out in last.parameters)


def _are_two(one: ParameterFact | None, other: ParameterFact | None) -> bool:
    """Tell whether two parameters that learn could be one."""
    return (
        one is not None
        and other is not None
        and one.index != other.index
        and one.is_trainable
        and other.is_trainable
        and one.shape == other.shape
        and len(one.shape) == 2
        and one.shape[0] >= _LEAST_ROWS
    )


def _said(network: NetworkFact, one: ParameterFact, other: ParameterFact) -> list[TieFact]:
    """Return what the modules that hold both parameters say of a tie."""
    return [
        said
        for said in network.ties_said
        if all(any(n.startswith(said.owner + ".") for n in p.names) for p in (one, other))
    ]


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    for find in (_split, _rebuilt, _declared, _copied, _parted):
        found = find(rule, trace)
        if found:
            return found
    return ()


TIE_LOST = Rule(
    name="tied parameters stay tied",
    fault="tie lost",
    requirement="TRACE-16",
    requires="Two memberships; the numbers of an embedding and of an output weight; a setting that "
    "says they are tied; or a tie that was made under the trace.",
    contradicted_by="An output layer that was meant to begin as a copy of the embedding.",
    abstains="The copied weight is of two layers of one kind, as those of a transformer are; a "
    "setting says that there is no tie; one of the two is frozen.",
    judge=_judge,
)
