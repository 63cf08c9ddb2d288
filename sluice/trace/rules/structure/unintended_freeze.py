"""Detects layers that are probably frozen by mistake.

In this module, a weight matrix is any parameter with at least two dimensions. Biases and the
weights of normalization layers have one dimension and do not count.
"""

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
from sluice.trace.rules._helpers.parameters import first_misspelled_step, first_names, list_names


class UnintendedFreezeSettings(Settings):
    """Thresholds of the rule ``UNINTENDED_FREEZE``."""

    min_frozen_matrices: int = Field(
        2,
        ge=1,
        description="Two kinds of findings require at least this number of matrices: that all "
        "weight matrices are frozen, and that frozen weight matrices have their initial values.",
    )
    min_values: int = Field(
        100,
        ge=1,
        description="Only a weight matrix with at least this number of values is checked for "
        "initial values: the largest of few values says nothing about the bound of the "
        "initialization.",
    )
    min_bound_ratio: float = Field(
        0.95,
        gt=0,
        le=1,
        description="A weight matrix counts as untrained only if the ratio of its largest "
        "absolute value to the bound of a uniform initialization is at least this number and at "
        "most 1.",
    )
    min_inner_matrices: int = Field(
        4,
        ge=1,
        description="A finding that only the first and the last weight matrix are trained "
        "requires at least this number of weight matrices between the two.",
    )
    min_inner_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="A finding that only the first and the last weight matrix are trained "
        "requires that the matrices between the two contain at least this share of the values of "
        "all weight matrices.",
    )


def _judge(rule: Rule[UnintendedFreezeSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    if membership is None:
        return ()
    records = {p.index: p for p in membership.parameters}
    findings = []
    for network in trained_networks(trace):
        parameters = [records[p] for p in network.parameters if p in records]
        weight_matrices = [p for p in parameters if len(p.shape) >= 2]
        frozen_matrices = [p for p in weight_matrices if not p.is_trainable]
        frozen_parameters = [p for p in parameters if not p.is_trainable]
        misspelled_attributes = [
            a
            for a in network.misspelled_attributes
            if a.value and _are_parameters_frozen(a, records)
        ]
        if misspelled_attributes:
            findings.append(_build_misspelled_finding(rule, trace, network, misspelled_attributes))
            continue
        inner_matrices = _find_inner_matrices(rule.settings, trace, network, weight_matrices)
        if inner_matrices:
            findings.append(
                _build_inner_finding(rule, trace, network, inner_matrices, weight_matrices)
            )
            continue
        untrained_matrices = _find_untrained_matrices(rule.settings, trace, frozen_matrices)
        if untrained_matrices and len(frozen_matrices) < len(weight_matrices):
            findings.append(
                _build_untrained_finding(rule, trace, network, untrained_matrices, frozen_matrices)
            )
            continue
        if (
            len(frozen_matrices) < rule.settings.min_frozen_matrices
            or len(frozen_matrices) < len(weight_matrices)
            or len(frozen_parameters) == len(parameters)
        ):
            continue
        findings.append(
            rule.finding(
                severity="confirm",
                step=_first_frozen_step(trace, frozen_matrices),
                what=f"{network.name}: {len(frozen_parameters)} of {len(parameters)} parameters "
                f"are frozen, including all {len(weight_matrices)} weight matrices and the "
                "output layer: "
                f"{list_names(first_names(reversed(frozen_matrices)))}.",
                cause="Only normalization layers and biases are trained, not the output layer.",
                fix="Set requires_grad to True for the output layer, or for all layers that "
                "should be trained.",
                num_frozen=len(frozen_parameters),
                num_parameters=len(parameters),
            )
        )
    return tuple(findings)


def _are_parameters_frozen(
    attribute: MisspelledAttributeRecord, records: Mapping[int, ParameterRecord]
) -> bool:
    parameters = [records[p] for p in attribute.parameters if p in records]
    return bool(parameters) and not any(p.is_trainable for p in parameters)


def _build_misspelled_finding(
    rule: Rule[UnintendedFreezeSettings],
    trace: Trace,
    network: NetworkRecord,
    attributes: list[MisspelledAttributeRecord],
) -> TraceFinding:
    attribute = attributes[0].attribute
    is_on_module = attribute == "requires_grad"  # the right name, but on a module
    return rule.finding(
        severity="confirm" if is_on_module else "error",
        step=first_misspelled_step(trace, attributes),
        what=f"{network.name}: {list_names([a.owner for a in attributes])} "
        f"{'has' if len(attributes) == 1 else 'have'} {attribute} = True, but "
        "requires_grad of the parameters is False.",
        cause="torch reads only the requires_grad attribute of parameters. On a module, the "
        "attribute has no effect."
        if is_on_module
        else f"torch never reads {attribute}: the attribute is called requires_grad, and "
        "Python accepts any name.",
        fix="Call requires_grad_(True) on the module or parameter: a wrong method name raises an "
        "error.",
        num_frozen=len({p for a in attributes for p in a.parameters}),
        num_parameters=len(network.parameters),
    )


def _find_untrained_matrices(
    settings: UnintendedFreezeSettings, trace: Trace, frozen_matrices: list[ParameterRecord]
) -> list[ParameterRecord]:
    """Return the frozen weight matrices that still have their initial values.

    Only matrices that are in an optimizer and never had a gradient are checked. [] if fewer than
    half of the checked matrices, or fewer than ``min_frozen_matrices``, have their initial values.
    The largest of many uniform initial values is just below the bound of the initialization; after
    training, the largest value usually exceeds the bound.
    """
    optimized = trace.membership.optimized if trace.membership is not None else frozenset()
    optimizer_matrices = [
        p for p in frozen_matrices if p.index in optimized and not p.has_had_gradient
    ]
    samples_by_parameter = values_by_parameter(trace)
    untrained_matrices = [
        p
        for p in optimizer_matrices
        if samples_by_parameter.get(p.index)
        and _is_below_uniform_bound(settings, p, samples_by_parameter[p.index][-1])
    ]
    return (
        untrained_matrices
        if len(untrained_matrices) >= max(settings.min_frozen_matrices, len(optimizer_matrices) / 2)
        else []
    )


def _is_below_uniform_bound(
    settings: UnintendedFreezeSettings, record: ParameterRecord, sample: ParameterValuesRecord
) -> bool:
    """Whether the largest value is just below the bound of a uniform initialization of torch."""
    if math.prod(record.shape) < settings.min_values:
        return False
    fan_in = math.prod(record.shape[1:])
    fan_out = record.shape[0] * fan_in / record.shape[1]
    largest_value = max(-sample.smallest, sample.largest)
    # Bounds of torch's default initialization, kaiming_uniform_ and xavier_uniform_.
    bounds = fan_in**-0.5, (6 / fan_in) ** 0.5, (6 / (fan_in + fan_out)) ** 0.5
    return any(
        settings.min_bound_ratio * bound <= largest_value <= bound * (1 + 1e-4) for bound in bounds
    )


def _build_untrained_finding(
    rule: Rule[UnintendedFreezeSettings],
    trace: Trace,
    network: NetworkRecord,
    untrained_matrices: list[ParameterRecord],
    frozen_matrices: list[ParameterRecord],
) -> TraceFinding:
    return rule.finding(
        severity="confirm",
        step=_first_frozen_step(trace, untrained_matrices),
        what=f"{network.name}: {len(frozen_matrices)} weight matrices are frozen. At least "
        f"{len(untrained_matrices)} of them are in the optimizer and have torch's initial values: "
        f"{list_names(first_names(untrained_matrices))}.",
        cause="The frozen layers were neither loaded nor trained, or should have been unfrozen "
        "later.",
        fix="Load the weights of these layers, or call requires_grad_(True) when their training "
        "should start. Print the number of trainable parameters.",
        num_frozen=len(frozen_matrices),
        num_parameters=len(network.parameters),
    )


def _first_frozen_step(trace: Trace, frozen_matrices: list[ParameterRecord]) -> int:
    """Return the first recorded step at which all of the matrices are frozen."""
    indices = {p.index for p in frozen_matrices}
    return next(
        m.step
        for m in trace.memberships
        if {p.index for p in m.parameters if not p.is_trainable} >= indices
    )


def _find_inner_matrices(
    settings: UnintendedFreezeSettings,
    trace: Trace,
    network: NetworkRecord,
    weight_matrices: list[ParameterRecord],
) -> list[ParameterRecord]:
    """Return the matrices between the first and the last weight matrix, if only they are frozen.

    [] also if these matrices are too few, or contain too small a share of all values.
    """
    last_calls = next(
        (f.calls for f in reversed(trace.forward_passes) if f.network == network.index), ()
    )
    records = {p.index: p for p in weight_matrices}
    parameter_order = dict.fromkeys(p for c in last_calls for p in c.parameters)
    matrices = [records[p] for p in parameter_order if p in records]
    if len(matrices) != len(weight_matrices) or len(matrices) < settings.min_inner_matrices + 2:
        return []
    first_matrix, *inner_matrices, last_matrix = matrices
    if not (first_matrix.is_trainable and last_matrix.is_trainable) or any(
        p.is_trainable for p in inner_matrices
    ):
        return []
    num_inner_values = sum(math.prod(p.shape) for p in inner_matrices)
    num_values = sum(math.prod(p.shape) for p in matrices)
    return inner_matrices if num_inner_values >= settings.min_inner_share * num_values else []


def _build_inner_finding(
    rule: Rule[UnintendedFreezeSettings],
    trace: Trace,
    network: NetworkRecord,
    inner_matrices: list[ParameterRecord],
    weight_matrices: list[ParameterRecord],
) -> TraceFinding:
    return rule.finding(
        severity="confirm",
        step=_first_frozen_step(trace, inner_matrices),
        what=f"{network.name}: the first and the last of {len(weight_matrices)} weight matrices "
        f"are trained, and all {len(inner_matrices)} matrices between them are frozen: "
        f"{list_names(first_names(inner_matrices))}.",
        cause="The code that selects layers to freeze, by name or type, selected more layers than "
        "intended.",
        fix="Set requires_grad to True for the layers that should be trained, and print their "
        "names.",
        num_frozen=len(inner_matrices),
        num_parameters=len(network.parameters),
    )


UNINTENDED_FREEZE = Rule(
    name="at least one weight of a network is trained",
    fault="unintended freeze",
    priority=160,
    requires="A snapshot of the networks and optimizers. A finding about misspelled attributes "
    "also requires an attribute with a name that resembles requires_grad.",
    contradicted_by="An intentional tuning of normalization layers or biases alone.",
    abstains="At least one weight matrix is trained, and the frozen matrices were loaded or are "
    "in no optimizer, such as a backbone below a new head. But if only the first and the last "
    "weight matrix are trained, a finding is possible.",
    settings=UnintendedFreezeSettings(),
    judge=_judge,
)
