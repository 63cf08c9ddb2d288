"""Detects non-finite inputs and targets."""

import math

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.inputs import NonFiniteTensorRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import list_numbers, network_name


class NonfiniteInputSettings(Settings):
    """Thresholds of the rule ``NONFINITE_INPUT``."""

    max_steps_until_nonfinite: int = Field(
        10,
        ge=1,
        description="Severity 'error' requires that a loss or a gradient becomes non-finite at "
        "most this number of steps after the first non-finite training input or target. The "
        "severity is also 'error' if a training input makes the network output non-finite.",
    )


def _makes_loss_or_gradient_nonfinite(
    settings: NonfiniteInputSettings, trace: Trace, step: int
) -> bool:
    """Whether a recorded loss or gradient is non-finite at a step or soon after the step."""
    steps = range(step, step + settings.max_steps_until_nonfinite + 1)
    losses = [loss for scalars in trace.scalars if scalars.step in steps for loss in scalars.losses]
    grad_norms = [
        norm
        for statistics in trace.statistics
        if statistics.step in steps
        for optimizer in statistics.optimizers
        for norm in optimizer.grad_norms
    ]
    return not all(map(math.isfinite, (*losses, *grad_norms)))


def _first_nonfinite_step(trace: Trace) -> float:
    """Return the first step with corrupted weights, a non-finite loss or a non-finite gradient.

    Infinity without such a step. Non-finite inputs at later steps may be consequences of the step.
    A non-finite gradient counts only if the loss is finite; otherwise the loss causes the gradient.
    """
    loss_steps = [s.step for s in trace.scalars if not all(map(math.isfinite, s.losses))]
    gradient_steps = [g.step for g in trace.nonfinite_gradients if math.isfinite(g.loss)]
    weight_steps = [w.step for w in trace.corrupted_weights]
    return min([*loss_steps, *gradient_steps, *weight_steps], default=math.inf)


def _judge(rule: Rule[NonfiniteInputSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    nonfinite_step = _first_nonfinite_step(trace)
    for role in ("input", "target"):
        # ``r.step`` is the number of steps before the batch: the batch belongs to the next step.
        records = [r for r in trace.nonfinite_tensors if r.what == role and r.step < nonfinite_step]
        training_records = [r for r in records if r.is_learning]
        if records:
            first_record = (training_records or records)[0]
            is_harmful = bool(training_records) and (
                any(r.reaches_output for r in training_records)
                or _makes_loss_or_gradient_nonfinite(rule.settings, trace, first_record.step + 1)
            )
            findings.append(
                _build_finding(rule, trace, first_record, len(records), is_harmful=is_harmful)
            )
    return tuple(findings)


def _inflect(noun: str, num: int, plural_suffix: str = "s") -> str:
    return noun if num == 1 else noun + plural_suffix


def _build_finding(
    rule: Rule[NonfiniteInputSettings],
    trace: Trace,
    record: NonFiniteTensorRecord,
    num_batches: int,
    *,
    is_harmful: bool,
) -> TraceFinding:
    count_texts = [
        f"{count} {name}"
        for count, name in ((record.num_nan, "NaN"), (record.num_infinite, "infinite"))
        if count
    ]
    rows_text = list_numbers(record.rows, record.num_rows)
    position_text = f"{_inflect('row', record.num_rows)} {rows_text} of {record.shape[0]}"
    if len(record.shape) > 1:
        columns_text = list_numbers(record.columns, record.num_columns)
        position_text = f"{_inflect('column', record.num_columns)} {columns_text}, {position_text}"
    network = network_name(trace, record.network)
    subject = (
        f"{network} received" if record.what == "input" else f"The targets of {network} contain"
    )
    values_text = _inflect("value", record.num_nan + record.num_infinite)
    batches_text = f"{num_batches} such {_inflect('batch', num_batches, 'es')}"
    return rule.finding(
        severity="error" if is_harmful else "confirm" if not record.is_learning else "warning",
        step=record.step + 1,
        what=f"{subject} {' and '.join(count_texts)} {values_text} in the batch at step "
        f"{record.step + 1}: {position_text}; {batches_text} "
        f"{'was' if num_batches == 1 else 'were'} recorded.",
        cause="A single NaN or infinity can make the loss, all gradients and then all weights NaN.",
        fix="Impute or drop missing values before the first epoch, and check each column.",
        num_nan=record.num_nan,
        num_infinite=record.num_infinite,
        num_rows=record.num_rows,
    )


NONFINITE_INPUT = Rule(
    name="all inputs and targets are finite",
    fault="non-finite input",
    priority=530,
    requires="An input with NaN or infinity in one of the first 64 batches of a network from one "
    "loader, or an input or target with NaN or infinity whose training loss is non-finite.",
    contradicted_by="A network that masks non-finite values itself, so that its outputs stay "
    "finite.",
    abstains="A loss, gradient or weight was non-finite at an earlier step. If outputs, losses and "
    "gradients stay finite, a finding about a training batch is only a warning.",
    settings=NonfiniteInputSettings(),
    judge=_judge,
)
