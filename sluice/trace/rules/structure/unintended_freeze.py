"""Detects layers that are probably frozen by mistake."""

import math
from collections.abc import Mapping

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.membership import (
    MisspelledAttributeRecord,
    NetworkRecord,
    ParameterRecord,
)
from sluice.trace.records.parameter_values import ParameterValuesRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.forward_passes import trained_networks
from sluice.trace.rules._helpers.measurements import values_by_parameter
from sluice.trace.rules._helpers.parameters import first_misspelled_step, list_names


class UnintendedFreezeSettings(Settings):
    """Thresholds of the rule ``UNINTENDED_FREEZE``."""

    min_frozen_weights: int = Field(2, ge=1, description="Frozen weights required for a finding.")
    min_values: int = Field(
        256,
        ge=1,
        description="Minimum number of values of a weight at which the largest one identifies its "
        "initialization.",
    )
    min_bound_share: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Share of the uniform bound that the largest initial value almost always "
        "exceeds.",
    )
    min_inner_weights: int = Field(
        4, ge=1, description="Frozen weights between two trained ones required for a finding."
    )
    min_inner_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of all weight values that the frozen weights between two trained ones "
        "must contain.",
    )


def _judge(rule: Rule[UnintendedFreezeSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    if membership is None:
        return ()
    records = {p.index: p for p in membership.parameters}
    findings = []
    for network in trained_networks(trace):
        parameters = [records[p] for p in network.parameters if p in records]
        weights = [p for p in parameters if len(p.shape) >= 2]
        frozen_weights = [p for p in weights if not p.is_trainable]
        frozen_parameters = [p for p in parameters if not p.is_trainable]
        misspelled = [
            m
            for m in network.misspelled_attributes
            if m.value and _are_parameters_frozen(m, records)
        ]
        if misspelled:
            findings.append(_build_misspelled_finding(rule, trace, network, misspelled))
            continue
        inner_weights = _find_inner_weights(rule.settings, trace, network, weights)
        if inner_weights:
            findings.append(_build_inner_finding(rule, trace, network, inner_weights, weights))
            continue
        untrained = _find_untrained_weights(rule.settings, trace, frozen_weights)
        if untrained and len(frozen_weights) < len(weights):
            findings.append(
                _build_untrained_finding(rule, trace, network, untrained, frozen_weights)
            )
            continue
        if len(frozen_weights) < max(rule.settings.min_frozen_weights, len(weights)) or len(
            frozen_parameters
        ) == len(parameters):
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=_first_frozen_step(trace, frozen_weights),
                what=f"{network.name}: {len(frozen_parameters)} of {len(parameters)} parameters "
                f"are frozen, including all {len(weights)} weights and the output layer: "
                f"{list_names([p.names[0] for p in reversed(frozen_weights)])}.",
                cause="Only norms and biases are trained; the output layer does not learn.",
                fix="Set requires_grad to True for the output layer, or for all layers that "
                "should be trained.",
                num_frozen=len(frozen_parameters),
                num_parameters=len(parameters),
            )
        )
    return tuple(findings)


def _are_parameters_frozen(
    misspelled: MisspelledAttributeRecord, records: Mapping[int, ParameterRecord]
) -> bool:
    parameters = [records[p] for p in misspelled.parameters if p in records]
    return bool(parameters) and not any(p.is_trainable for p in parameters)


def _build_misspelled_finding(
    rule: Rule[UnintendedFreezeSettings],
    trace: Trace,
    network: NetworkRecord,
    misspelled: list[MisspelledAttributeRecord],
) -> TraceFinding:
    first = misspelled[0]
    is_module = first.attribute == "requires_grad"
    return rule.finding(
        severity="confirm" if is_module else "error",
        step=first_misspelled_step(trace, misspelled),
        what=f"{network.name}: {list_names([m.owner for m in misspelled])} "
        f"{'has' if len(misspelled) == 1 else 'have'} {first.attribute} = True, but "
        "requires_grad of the parameters is False.",
        cause="torch reads only the requires_grad attribute of parameters; on a module it has no "
        "effect."
        if is_module
        else f"torch never reads {first.attribute}: the attribute is called requires_grad, and "
        "Python accepts any name.",
        fix="Call requires_grad_(True) on the module or parameter: a wrong method name raises an "
        "error.",
        num_frozen=len({p for m in misspelled for p in m.parameters}),
        num_parameters=len(network.parameters),
    )


def _find_untrained_weights(
    settings: UnintendedFreezeSettings, trace: Trace, frozen_weights: list[ParameterRecord]
) -> list[ParameterRecord]:
    """Return the optimizer's frozen weights that have their initial values, if at least half do.

    [] otherwise. The largest of many uniform initial values is just below the bound of the
    initialization; after training, the largest value exceeds it.
    """
    optimized = trace.membership.optimized if trace.membership is not None else frozenset()
    optimizer_weights = [
        p for p in frozen_weights if p.index in optimized and not p.has_had_gradient
    ]
    values = values_by_parameter(trace)
    untrained = [
        p
        for p in optimizer_weights
        if values.get(p.index) and _is_below_uniform_bound(settings, p, values[p.index][-1])
    ]
    return (
        untrained
        if len(untrained) >= max(settings.min_frozen_weights, len(optimizer_weights) / 2)
        else []
    )


def _is_below_uniform_bound(
    settings: UnintendedFreezeSettings, record: ParameterRecord, value: ParameterValuesRecord
) -> bool:
    """Whether the largest value is just below the bound of a uniform initialization of torch."""
    fan_in = math.prod(record.shape[1:])
    if math.prod(record.shape) < settings.min_values:
        return False
    fan_out = record.shape[0] * fan_in / record.shape[1]
    largest = max(-value.smallest, value.largest)
    bounds = fan_in**-0.5, (6 / fan_in) ** 0.5, (6 / (fan_in + fan_out)) ** 0.5
    return any(
        settings.min_bound_share * bound <= largest <= bound * (1 + 1e-4) for bound in bounds
    )


def _build_untrained_finding(
    rule: Rule[UnintendedFreezeSettings],
    trace: Trace,
    network: NetworkRecord,
    untrained: list[ParameterRecord],
    frozen_weights: list[ParameterRecord],
) -> TraceFinding:
    return rule.finding(
        severity="confirm",
        step=_first_frozen_step(trace, untrained),
        what=f"{network.name}: {len(frozen_weights)} weights are frozen. At least {len(untrained)} "
        "of them are in the optimizer and have torch's initial values: "
        f"{list_names([p.names[0] for p in untrained if p.names])}.",
        cause="A backbone is frozen that was neither loaded nor trained, or that should have been "
        "unfrozen later.",
        fix="Load its weights, or call requires_grad_(True) where it should be trained, and "
        "print the number of trainable parameters.",
        num_frozen=len(frozen_weights),
        num_parameters=len(network.parameters),
    )


def _first_frozen_step(trace: Trace, frozen_weights: list[ParameterRecord]) -> int:
    """Return the first step at which all of the parameters are frozen."""
    indices = {p.index for p in frozen_weights}
    return next(
        m.step
        for m in trace.memberships
        if {p.index for p in m.parameters if not p.is_trainable} >= indices
    )


def _find_inner_weights(
    settings: UnintendedFreezeSettings,
    trace: Trace,
    network: NetworkRecord,
    weights: list[ParameterRecord],
) -> list[ParameterRecord]:
    """Return the weights between the first and the last one if only these two are trained.

    [] otherwise, or if the weights between contain too small a share of all values.
    """
    forward_pass = next(
        (f for f in reversed(trace.forward_passes) if f.network == network.index), None
    )
    records = {p.index: p for p in weights}
    order = dict.fromkeys(
        p for c in (forward_pass.calls if forward_pass else ()) for p in c.parameters
    )
    called = [records[p] for p in order if p in records]
    if len(called) != len(weights) or len(called) < settings.min_inner_weights + 2:
        return []
    inner_weights = called[1:-1]
    are_ends_trained = called[0].is_trainable and called[-1].is_trainable
    if not are_ends_trained or any(p.is_trainable for p in inner_weights):
        return []
    size = sum(math.prod(p.shape) for p in inner_weights)
    return (
        inner_weights
        if size >= settings.min_inner_share * sum(math.prod(p.shape) for p in called)
        else []
    )


def _build_inner_finding(
    rule: Rule[UnintendedFreezeSettings],
    trace: Trace,
    network: NetworkRecord,
    inner_weights: list[ParameterRecord],
    weights: list[ParameterRecord],
) -> TraceFinding:
    return rule.finding(
        severity="confirm",
        step=_first_frozen_step(trace, inner_weights),
        what=f"{network.name}: the first and the last of {len(weights)} weights are trained, and "
        f"all {len(inner_weights)} between them are frozen: "
        f"{list_names([p.names[0] for p in inner_weights if p.names])}.",
        cause="A test by name or type that freezes norms or a backbone matched more than intended.",
        fix="Set requires_grad to True for the layers that should be trained, and print their "
        "names.",
        num_frozen=len(inner_weights),
        num_parameters=len(network.parameters),
    )


UNINTENDED_FREEZE = Rule(
    name="at least one weight of a network is trained",
    fault="unintended freeze",
    priority=160,
    requires="A snapshot of the networks and optimizers. A finding about misspelled attributes "
    "also requires an attribute whose name resembles requires_grad.",
    contradicted_by="An intentional tuning of norms or biases alone.",
    abstains="At least one weight is trained, and the frozen weights were loaded or are in no "
    "optimizer, such as a backbone below a new head. This does not apply if only the first and the "
    "last weight are trained.",
    settings=UnintendedFreezeSettings(),
    judge=_judge,
)
