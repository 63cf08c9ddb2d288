"""Detects tied parameters that are no longer one parameter."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, product

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.membership import (
    Membership,
    NetworkRecord,
    ParameterRecord,
    TyingSettingRecord,
)
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import (
    parameter_names,
    parameter_records,
    values_by_parameter,
)


class TiedWeightsBrokenSettings(Settings):
    """Thresholds of the rule ``TIED_WEIGHTS_BROKEN``."""

    min_rows: int = Field(
        8, ge=1, description="A finding requires an embedding with at least this number of rows."
    )


_FIX = (
    "After each change of the embedding or the output layer, assign the embedding's weight to the "
    "output layer."
)


def _detect_untied_names(
    rule: Rule[TiedWeightsBrokenSettings], trace: Trace
) -> TraceFinding | None:
    """Detect two names of one parameter that become the names of two parameters."""
    for old_membership, new_membership in pairwise(trace.memberships):
        index_by_name = {name: p.index for p in new_membership.parameters for name in p.names}
        for parameter in old_membership.parameters:
            for name, other_name in combinations(parameter.names, 2):
                if (
                    name in index_by_name
                    and other_name in index_by_name
                    and index_by_name[name] != index_by_name[other_name]
                ):
                    return rule.finding(
                        severity="error",
                        step=new_membership.step,
                        what=f"{name} and {other_name} were one parameter up to step "
                        f"{new_membership.step - 1}, and are two parameters now.",
                        cause="One of the weights was reassigned or created again after the "
                        "tying. The two weights diverge from this step on.",
                        fix=_FIX,
                        num_names=len(parameter.names),
                    )
    return None


def _detect_rebuilt_network(
    rule: Rule[TiedWeightsBrokenSettings], trace: Trace
) -> TraceFinding | None:
    """Detect a network that lacks the weight tying of the first network of its class.

    The network must have loaded a state after the first step.
    """
    networks = {n.index: n for m in trace.memberships for n in m.networks}
    first_indices_by_kind: dict[str, dict[str, int]] = {}
    for network in networks.values():
        prefix = network.name + "."
        index_by_name = {
            name.removeprefix(prefix): p.index
            for m in trace.memberships
            for p in m.parameters
            for name in p.names
            if name.startswith(prefix)
        }
        first_index_by_name = first_indices_by_kind.setdefault(network.kind, index_by_name)
        load_steps = [
            load.step
            for load in trace.loads
            if (load.role, load.kind) == ("network", network.kind)
            and load.step
            and load.object_id in (network.index, -1)  # -1: loaded before the first call
        ]
        if (
            first_index_by_name is index_by_name
            or first_index_by_name.keys() != index_by_name.keys()
            or not load_steps
        ):
            continue
        for name, other_name in combinations(sorted(index_by_name), 2):
            if (
                first_index_by_name[name] == first_index_by_name[other_name]
                and index_by_name[name] != index_by_name[other_name]
            ):
                return rule.finding(
                    severity="error",
                    step=min(load_steps) + 1,
                    what=f"{name} and {other_name} are tied in the first {network.kind}. In "
                    f"{network.name}, which was created later and loaded a state, they are two "
                    "parameters.",
                    cause="The weights were not tied again, so they diverge from this step on.",
                    fix=_FIX,
                    num_names=len(index_by_name),
                )
    return None


def _detect_copied_embedding(
    rule: Rule[TiedWeightsBrokenSettings], trace: Trace
) -> TraceFinding | None:
    """Detect an embedding that starts with the values of another weight of its network."""
    records, names = parameter_records(trace), parameter_names(trace)
    samples_by_parameter, embedding_weights = values_by_parameter(trace), _embedding_weights(trace)
    for network in trace.memberships[0].networks if trace.memberships else ():
        weights = [p for p in network.parameters if p in samples_by_parameter and p in records]
        embeddings = [p for p in weights if p in embedding_weights]
        for embedding, other_weight in product(embeddings, weights):
            record, initial_sample = records[embedding], samples_by_parameter[embedding][0]
            if (
                other_weight not in embedding_weights
                and _could_be_tied(rule.settings, record, records[other_weight])
                and initial_sample.fingerprint == samples_by_parameter[other_weight][0].fingerprint
                and initial_sample.step == samples_by_parameter[other_weight][0].step
                and initial_sample.num_distinct_rows > 1
                and all(s.value for s in _tying_settings(network, record, records[other_weight]))
            ):
                return rule.finding(
                    severity="error",
                    step=initial_sample.step,
                    confidence=0.95,
                    what=f"{names[embedding]} and {names[other_weight]} started with the same "
                    f"{record.shape[0]} x {record.shape[1]} values but are two parameters.",
                    cause="The weight tying was lost when the network was copied, so the weights "
                    "diverge from the first step on.",
                    fix=_FIX,
                    num_rows=record.shape[0],
                )
    return None


def _detect_declared_tying(
    rule: Rule[TiedWeightsBrokenSettings], trace: Trace
) -> TraceFinding | None:
    """Detect a network without tied weights although its settings declare weight tying."""
    records, names = parameter_records(trace), parameter_names(trace)
    for membership, network in _first_network_records(trace):
        parameters = {p.index: p for p in membership.parameters if p.index in network.parameters}
        # Skip a network with tied parameters: it has applied the setting.
        if any(
            sum(n.startswith(network.name + ".") for n in p.names) > 1 for p in parameters.values()
        ):
            continue
        for embedding, output_weight in _candidate_pairs(trace, network):
            if not _could_be_tied(
                rule.settings, parameters.get(embedding), parameters.get(output_weight)
            ):
                continue
            tying_settings = _tying_settings(network, records[embedding], records[output_weight])
            if tying_settings and all(s.value for s in tying_settings):
                return rule.finding(
                    severity="error",
                    step=membership.step,
                    confidence=0.97,
                    what=f"{tying_settings[0].owner} has {tying_settings[0].attribute} = True, but "
                    f"{names[embedding]} and {names[output_weight]} are two parameters.",
                    cause="The weights were never tied, or one of them was replaced "
                    "afterwards: they diverge from the first step on.",
                    fix=_FIX,
                    num_rows=records[embedding].shape[0],
                )
    return None


def _detect_replaced_weight(
    rule: Rule[TiedWeightsBrokenSettings], trace: Trace
) -> TraceFinding | None:
    """Detect a tie that is broken before the first step because a parameter was replaced."""
    names, embedding_weights = parameter_names(trace), _embedding_weights(trace)
    for membership, network in _first_network_records(trace):
        parameters = {p.index: p for p in membership.parameters}
        for new_weight, other_weight in network.broken_ties:
            tying_settings = _tying_settings(
                network, parameters[new_weight], parameters[other_weight]
            )
            if not _could_be_tied(
                rule.settings, parameters[new_weight], parameters[other_weight]
            ) or not all(s.value for s in tying_settings):
                continue
            return rule.finding(
                # A new output layer for the old embedding may be intentional.
                severity="error" if new_weight in embedding_weights else "confirm",
                step=membership.step,
                confidence=0.95,
                what=f"{names[new_weight]} and {names[other_weight]} were one parameter when the "
                f"network was created. {names[new_weight]} was replaced before the first step, so "
                "they are two parameters now.",
                cause="The weights were not tied again, so they diverge from the first step on.",
                fix=_FIX,
                num_names=2,
            )
    return None


def _embedding_weights(trace: Trace) -> set[int]:
    return {
        p
        for f in trace.forward_passes
        for c in f.calls
        if c.kind == "Embedding"
        for p in c.parameters
    }


def _first_network_records(trace: Trace) -> Iterator[tuple[Membership, NetworkRecord]]:
    """Yield the first record of every network, with the membership that contains it."""
    yielded_networks: set[int] = set()
    for membership in trace.memberships:
        for network in membership.networks:
            if network.index not in yielded_networks:
                yielded_networks.add(network.index)
                yield membership, network


def _candidate_pairs(trace: Trace, network: NetworkRecord) -> Iterator[tuple[int, int]]:
    """Yield pairs of an embedding and a parameter of the last linear layer.

    Other parameters of the same shape may belong to position embeddings or inner layers. An
    embedding that the first pass uses twice is left out, because it may be shared on purpose.
    """
    first_calls = next((f.calls for f in trace.forward_passes if f.network == network.index), ())
    calls = [c for c in first_calls if c.module and c.parameters]
    embeddings = Counter(p for c in calls if c.kind == "Embedding" for p in c.parameters)
    output_weights = next((c.parameters for c in reversed(calls) if c.kind == "Linear"), ())
    for embedding, num_uses in embeddings.items():
        if num_uses == 1:
            yield from ((embedding, output_weight) for output_weight in output_weights)


def _could_be_tied(
    settings: TiedWeightsBrokenSettings,
    first: ParameterRecord | None,
    second: ParameterRecord | None,
) -> bool:
    """Whether two parameters are trainable matrices of equal shape, which could be tied."""
    return (
        first is not None
        and second is not None
        and first.index != second.index
        and first.is_trainable
        and second.is_trainable
        and first.shape == second.shape
        and len(first.shape) == 2
        and first.shape[0] >= settings.min_rows
    )


def _tying_settings(
    network: NetworkRecord, first: ParameterRecord, second: ParameterRecord
) -> list[TyingSettingRecord]:
    """Return the weight-tying settings of the modules that contain both parameters."""
    return [
        setting
        for setting in network.tying_settings
        if all(any(n.startswith(setting.owner + ".") for n in p.names) for p in (first, second))
    ]


def _judge(rule: Rule[TiedWeightsBrokenSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    for detect in (
        _detect_untied_names,
        _detect_rebuilt_network,
        _detect_declared_tying,
        _detect_copied_embedding,
        _detect_replaced_weight,
    ):
        finding = detect(rule, trace)
        if finding is not None:
            return (finding,)
    return ()


TIED_WEIGHTS_BROKEN = Rule(
    name="tied parameters stay tied",
    fault="tied weights broken",
    priority=190,
    requires="One of: two snapshots of one network, or snapshots of two networks of one class; the "
    "initial values of an embedding and of another weight; a setting that declares weight tying; "
    "weights that were tied when the network was created.",
    contradicted_by="An output layer that intentionally starts as a copy of the embedding.",
    abstains="Two layers of one kind start with equal weights, such as copied transformer layers; "
    "a setting declares that the weights are not tied; or one of the two weights is frozen.",
    settings=TiedWeightsBrokenSettings(),
    judge=_judge,
)
