"""Detects layers whose neurons are all initialized with the same weights."""

from collections.abc import Collection, Sequence

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.membership import ParameterRecord
from sluice.trace.records.parameter_values import ParameterValuesRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import (
    changed_parameters,
    measurements_of,
    parameter_names,
    parameter_records,
    values_by_parameter,
)
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers
from sluice.trace.rules._helpers.parameters import list_names


class ConstantInitSettings(Settings):
    """Thresholds of the rule ``CONSTANT_INIT``."""

    min_rows: int = Field(4, ge=2, description="Rows of a weight required for a finding.")
    min_samples: int = Field(3, ge=1, description="Samples of a weight required for a finding.")
    max_equal_steps: int = Field(
        4, ge=1, description="Steps after which the rows of a layer that learns differ."
    )
    max_gates: int = Field(
        4, ge=1, description="Blocks of equal rows: a recurrent layer has one per gate."
    )


_KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "GRU", "LSTM", "RNN", "Bilinear")


_FIX = (
    "Initialize with random values: torch's default initialization, or nn.init.xavier_uniform_ "
    "or kaiming_uniform_ for weights; use zeros only for biases."
)


def _is_equal(settings: ConstantInitSettings, value: ParameterValuesRecord) -> bool:
    blocks = min(settings.max_gates, value.num_rows // settings.min_rows)
    return value.num_rows >= settings.min_rows and 1 <= value.num_distinct_rows <= max(blocks, 1)


def _stays_equal(
    settings: ConstantInitSettings, fact: ParameterRecord, values: tuple[ParameterValuesRecord, ...]
) -> bool:
    """Whether all rows are equal in the first sample and in every later one."""
    return (
        fact.is_trainable
        and bool(fact.names)
        and len(values) >= settings.min_samples
        and values[-1].step > values[0].step + settings.max_equal_steps
        and values[0].num_distinct_rows == 1
        and all(_is_equal(settings, value) for value in values)
    )


def _judge(rule: Rule[ConstantInitSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    now = trace.membership
    if now is None:
        return ()
    found = _equal(rule, trace)
    return found or _filled(rule, trace)


def _filled(rule: Rule[ConstantInitSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    """Detect weights initialized with one value, even if other layers make their rows differ later.

    Zero is a good initial value for the last layer of a branch, but not for consecutive layers: the
    gradient of the first one is zero until the layers after it have changed, step by step.
    """
    now = trace.membership
    if now is None:
        return ()
    facts, names, values = (
        parameter_records(trace),
        parameter_names(trace),
        values_by_parameter(trace),
    )
    layers = {
        p for f in trace.forward_passes for c in f.calls if c.kind in _KINDS for p in c.parameters
    }
    others = [c.parameters for f in trace.forward_passes for c in f.calls if c.kind not in _KINDS]
    zero_steps: dict[int, set[int]] = {}
    for optimizer in stepping_optimizers(trace):
        for step, own in measurements_of(trace, optimizer):
            for p, norm in zip(own.parameters, own.grad_norms, strict=True):
                if norm == 0 and max(own.rates) > 0:
                    zero_steps.setdefault(p, set()).add(step)
    constant = []
    stuck_at_zero = set[int]()
    for p in sorted(now.optimized):
        fact, first = facts.get(p), values.get(p, ())[:1]
        if fact is None or not first or not fact.is_trainable or not fact.names:
            continue
        if (
            first[0].num_distinct_rows != 1
            or min(fact.shape[:2], default=0) < rule.settings.min_rows
        ):
            continue
        value = first[0]
        if value.smallest == value.largest == 0:
            stuck_at_zero |= (
                {p} if {value.step, value.step + 1} <= zero_steps.get(p, set()) else set()
            )
        elif value.step == 1 and value.smallest == value.largest and p in layers:
            constant.append(p)
    # One factor of a product may be zero at the start, as in LoRA, but not both.
    constant += {
        p
        for p in stuck_at_zero
        if p in layers or any(_are_factors(stuck_at_zero, p, c) for c in others)
    }
    if not constant:
        return ()
    constant.sort()
    value_shown, step = values[constant[0]][0].largest, min(values[p][0].step for p in constant)
    return (
        rule.finding(
            severity="error",
            step=step,
            confidence=0.95,
            what=f"{len(constant)} weights were initialized with one value everywhere "
            f"({value_shown:.3g} in the first): {list_names([names[p] for p in constant])}.",
            cause="All neurons of a layer start out equal, and only their biases distinguish them.",
            fix=_FIX,
            num_weights=len(constant),
        ),
    )


def _are_factors(stuck_at_zero: Collection[int], parameter: int, own: Sequence[int]) -> bool:
    """Whether a custom module contains this parameter and another one, both stuck at zero."""
    return parameter in own and sum(p in stuck_at_zero for p in own) > 1


def _equal(rule: Rule[ConstantInitSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    """Detect weights whose rows are equal and stay equal."""
    now = trace.membership
    if now is None:
        return ()
    facts, changed_indices, names = (
        parameter_records(trace),
        changed_parameters(trace),
        parameter_names(trace),
    )
    values = values_by_parameter(trace)
    learning = changed_indices & now.optimized
    with_gradient = {p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient}
    equal = [
        p
        for p, seen in values.items()
        if p in now.optimized
        and p in with_gradient
        and p in facts
        and _stays_equal(rule.settings, facts[p], seen)
    ]
    # A learning rate of zero leaves every weight as it was.
    if not equal or not learning:
        return ()
    unchanged = [p for p in equal if p not in changed_indices]
    first = min(values[p][0].step for p in equal)
    rows = values[equal[0]][-1].num_rows
    return (
        rule.finding(
            severity="error",
            step=first,
            what=f"In {len(equal)} weights all rows are equal from step {first} to step "
            f"{max(values[p][-1].step for p in equal)}: {list_names([names[p] for p in equal])} "
            f"({rows} rows in the first)"
            + (f"; {len(unchanged)} never changed." if unchanged else "."),
            cause="All neurons of a layer compute the same output and receive the same gradient: "
            "the layer is equivalent to one neuron.",
            fix=_FIX,
            num_weights=len(equal),
            num_unchanged=len(unchanged),
        ),
    )


CONSTANT_INIT = Rule(
    name="neurons of a layer are initialized with different weights",
    fault="constant initialization",
    priority=240,
    requires="Three samples of a weight with at least four rows, and some parameter that learns.",
    contradicted_by="Rows that differ in any sample.",
    abstains="The rows differ after the first steps, as for a zero-initialized output layer or "
    "LoRA; or nothing learns.",
    settings=ConstantInitSettings(),
    judge=_judge,
)
