"""Detects layers whose neurons are all initialized with the same weights."""

from collections.abc import Collection

from pydantic import Field

from sluice.base.pluralize import pluralize
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

    min_rows: int = Field(
        4,
        ge=2,
        description="A finding requires a weight with at least this number of rows. A finding "
        "about a weight with a single value also requires at least this number of columns.",
    )
    min_samples: int = Field(
        3,
        ge=1,
        description="A finding about equal rows requires at least this number of samples of the "
        "weight's values.",
    )
    max_equal_steps: int = Field(
        4,
        ge=1,
        description="In a healthy layer, rows may stay equal for at most this number of steps. A "
        "finding about equal rows requires that the last sample is more than this number of steps "
        "after the first sample.",
    )
    max_gates: int = Field(
        4,
        ge=1,
        description="After the first sample, the rows of a weight count as equal if at most this "
        "number of rows are distinct, and if the weight has at least min_rows rows per distinct "
        "row. If all neurons of a recurrent layer are equal, its weight still has one distinct row "
        "per gate. The layer with the most gates is the LSTM.",
    )


_LAYER_KINDS = ("Linear", "Conv1d", "Conv2d", "Conv3d", "GRU", "LSTM", "RNN", "Bilinear")
"""Classes of the layers whose weights must not be initialized with a single value."""

_FIX = (
    "Initialize with random values: torch's default initialization, or nn.init.xavier_uniform_ "
    "or kaiming_uniform_ for weights; use zeros only for biases."
)


def _has_equal_rows(settings: ConstantInitSettings, sample: ParameterValuesRecord) -> bool:
    """Whether all rows of a weight are equal, or all rows of each gate of a recurrent layer."""
    max_distinct_rows = min(settings.max_gates, sample.num_rows // settings.min_rows)
    return 1 <= sample.num_distinct_rows <= max_distinct_rows


def _do_rows_stay_equal(
    settings: ConstantInitSettings,
    parameter: ParameterRecord,
    samples: tuple[ParameterValuesRecord, ...],
) -> bool:
    """Whether all rows are equal in the first sample and stay equal in all later samples.

    In later samples of a recurrent layer, the rows of different gates may differ.
    """
    return (
        parameter.is_trainable
        and bool(parameter.names)
        and len(samples) >= settings.min_samples
        and samples[-1].step > samples[0].step + settings.max_equal_steps
        and samples[0].num_distinct_rows == 1
        and all(_has_equal_rows(settings, sample) for sample in samples)
    )


def _judge(rule: Rule[ConstantInitSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    if trace.membership is None:
        return ()
    optimized = trace.membership.optimized
    finding = _detect_equal_rows(rule, trace, optimized)
    if finding is None:
        finding = _detect_constant_weights(rule, trace, optimized)
    return () if finding is None else (finding,)


def _detect_constant_weights(
    rule: Rule[ConstantInitSettings], trace: Trace, optimized: Collection[int]
) -> TraceFinding | None:
    """Detect weights that were initialized with a single value, even if their rows differ later.

    The last layer of a branch may start with zeros. Two consecutive layers that start with zeros
    may never change: the gradient of the first layer is zero as long as the second layer is zero,
    and the gradient of the second layer is zero as long as its input is zero.
    """
    records, names = parameter_records(trace), parameter_names(trace)
    samples_by_parameter = values_by_parameter(trace)
    calls = [call for forward_pass in trace.forward_passes for call in forward_pass.calls]
    layer_weights = {p for call in calls if call.kind in _LAYER_KINDS for p in call.parameters}
    zero_gradient_steps = _zero_gradient_steps(trace)
    constant_weights = []
    stuck_zero_weights = set[int]()
    for parameter in sorted(optimized):
        record, samples = records.get(parameter), samples_by_parameter.get(parameter)
        if record is None or not samples or not record.is_trainable or not record.names:
            continue
        initial_sample = samples[0]
        if (
            initial_sample.num_distinct_rows != 1
            or min(record.shape[:2], default=0) < rule.settings.min_rows
        ):
            continue
        if initial_sample.smallest == initial_sample.largest == 0:
            # A layer that starts with zeros and learns has a nonzero gradient at its initial step.
            # If only zeros in the next layer block the gradient, the next layer changes in the
            # initial step, and the gradient is nonzero one step later.
            if {initial_sample.step, initial_sample.step + 1} <= zero_gradient_steps.get(
                parameter, set()
            ):
                stuck_zero_weights.add(parameter)
        elif (
            initial_sample.step == 1
            and initial_sample.smallest == initial_sample.largest
            and parameter in layer_weights
        ):
            constant_weights.append(parameter)
    # A module of another class may multiply two of its parameters. One of these factors may start
    # with zeros, as in LoRA, but not both.
    zero_factors = {
        p
        for call in calls
        if call.kind not in _LAYER_KINDS
        and len(stuck_zero_weights.intersection(call.parameters)) > 1
        for p in stuck_zero_weights.intersection(call.parameters)
    }
    constant_weights += stuck_zero_weights & layer_weights | zero_factors
    if not constant_weights:
        return None
    constant_weights.sort()
    first_value = samples_by_parameter[constant_weights[0]][0].largest
    step = min(samples_by_parameter[p][0].step for p in constant_weights)
    return rule.finding(
        severity="error",
        step=step,
        confidence=0.95,
        what=f"{pluralize(len(constant_weights), 'weight')} "
        f"{'was' if len(constant_weights) == 1 else 'were'} initialized with a single value "
        f"({first_value:.3g} in the first weight): "
        f"{list_names([names[p] for p in constant_weights])}.",
        cause="All neurons of a layer start with equal weights; only their biases can differ.",
        fix=_FIX,
        num_weights=len(constant_weights),
    )


def _zero_gradient_steps(trace: Trace) -> dict[int, set[int]]:
    """Return the steps with a zero gradient and a positive learning rate, by parameter."""
    steps: dict[int, set[int]] = {}
    for optimizer in stepping_optimizers(trace):
        for step, measured_step in measurements_of(trace, optimizer):
            for parameter, norm in zip(
                measured_step.parameters, measured_step.grad_norms, strict=True
            ):
                if norm == 0 and max(measured_step.rates) > 0:
                    steps.setdefault(parameter, set()).add(step)
    return steps


def _detect_equal_rows(
    rule: Rule[ConstantInitSettings], trace: Trace, optimized: Collection[int]
) -> TraceFinding | None:
    """Detect weights whose rows are equal and stay equal."""
    records, names = parameter_records(trace), parameter_names(trace)
    changed_indices, samples_by_parameter = changed_parameters(trace), values_by_parameter(trace)
    parameters_with_gradient = {
        p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient
    }
    equal_row_weights = [
        p
        for p, samples in samples_by_parameter.items()
        if p in optimized
        and p in parameters_with_gradient
        and p in records
        and _do_rows_stay_equal(rule.settings, records[p], samples)
    ]
    # Report nothing if no optimized parameter changed, for example because the learning rate is
    # zero. Other rules report this.
    if not equal_row_weights or changed_indices.isdisjoint(optimized):
        return None
    unchanged_weights = [p for p in equal_row_weights if p not in changed_indices]
    first_step = min(samples_by_parameter[p][0].step for p in equal_row_weights)
    num_rows = samples_by_parameter[equal_row_weights[0]][-1].num_rows
    unchanged_text = (
        f"; {len(unchanged_weights)} of these weights never changed" if unchanged_weights else ""
    )
    return rule.finding(
        severity="error",
        step=first_step,
        what=f"In {pluralize(len(equal_row_weights), 'weight')} all rows are equal from step "
        f"{first_step} to step {max(samples_by_parameter[p][-1].step for p in equal_row_weights)}: "
        f"{list_names([names[p] for p in equal_row_weights])} ({num_rows} rows in the first weight)"
        f"{unchanged_text}.",
        cause="All neurons of a layer compute the same output and receive the same gradient: "
        "the layer is equivalent to one neuron.",
        fix=_FIX,
        num_weights=len(equal_row_weights),
        num_unchanged=len(unchanged_weights),
    )


CONSTANT_INIT = Rule(
    name="neurons of a layer are initialized with different weights",
    fault="constant initialization",
    priority=240,
    requires="Either three samples of a weight with at least four rows, while some parameter "
    "changes, or the initial values of a weight with at least four rows and four columns.",
    contradicted_by="A row after the first 512 that differs; only the first 512 rows are sampled.",
    abstains="The rows differ after the first steps, as for a zero-initialized output layer or "
    "LoRA; or no parameter changes.",
    settings=ConstantInitSettings(),
    judge=_judge,
)
