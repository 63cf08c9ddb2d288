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

    max_steps_until_visible: int = Field(
        10,
        ge=1,
        description="Maximum number of steps from a non-finite input or target to a non-finite "
        "loss or gradient, for an error. If the output of the network is non-finite, the finding "
        "is always an error.",
    )


def _becomes_visible(settings: NonfiniteInputSettings, trace: Trace, step: int) -> bool:
    """Whether a recorded loss or gradient is non-finite at a step or soon after it."""
    window = range(step, step + settings.max_steps_until_visible + 1)
    losses = [v for n in trace.scalars if n.step in window for v in n.losses]
    grads = [
        v for m in trace.statistics if m.step in window for o in m.optimizers for v in o.grad_norms
    ]
    return not all(map(math.isfinite, (*losses, *grads)))


def _first_other_nonfinite_step(trace: Trace) -> float:
    """Return the first step with corrupted weights, a non-finite loss or a non-finite gradient.

    Infinity without such a step. After it, non-finite inputs may be its consequences. Gradients
    count only if the loss is finite.
    """
    grads = [g.step for g in trace.nonfinite_gradients if math.isfinite(g.loss)]
    losses = [n.step for n in trace.scalars if not all(map(math.isfinite, n.losses))]
    weights = [s.step for s in trace.corrupted_weights]
    return min([*grads, *weights, *losses], default=math.inf)


def _judge(rule: Rule[NonfiniteInputSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    first_other_step = _first_other_nonfinite_step(trace)
    for what in ("input", "target"):
        records = [
            r for r in trace.nonfinite_tensors if r.what == what and r.step < first_other_step
        ]
        training_records = [r for r in records if r.is_learning]
        if records:
            first = (training_records or records)[0]
            is_harmful = bool(training_records) and (
                any(r.reaches_output for r in training_records)
                or _becomes_visible(rule.settings, trace, first.step + 1)
            )
            findings.append(_build_finding(rule, trace, first, len(records), is_harmful=is_harmful))
    return tuple(findings)


def _noun(noun: str, num: int, plural_suffix: str = "s") -> str:
    return noun if num == 1 else noun + plural_suffix


def _build_finding(
    rule: Rule[NonfiniteInputSettings],
    trace: Trace,
    record: NonFiniteTensorRecord,
    num_batches: int,
    *,
    is_harmful: bool,
) -> TraceFinding:
    counts = [
        f"{count} {name}"
        for count, name in ((record.num_nan, "NaN"), (record.num_infinite, "infinite"))
        if count
    ]
    rows = list_numbers(record.rows, record.num_rows)
    where = f"{_noun('row', record.num_rows)} {rows} of {record.shape[0]}"
    if len(record.shape) > 1:
        columns = list_numbers(record.columns, record.num_columns)
        where = f"{_noun('column', record.num_columns)} {columns}, {where}"
    owner = network_name(trace, record.network)
    subject = f"{owner} received" if record.what == "input" else f"The targets of {owner} contain"
    value = _noun("value", record.num_nan + record.num_infinite)
    return rule.finding(
        severity="error" if is_harmful else "confirm" if not record.is_learning else "warning",
        step=record.step + 1,
        what=f"{subject} {' and '.join(counts)} {value} in the batch at step {record.step + 1}: "
        f"{where}; {num_batches} such {_noun('batch', num_batches, 'es')} recorded.",
        cause="One NaN or infinity can make the loss, every gradient and then every weight NaN.",
        fix="Impute or drop missing values before the first epoch, and check each column.",
        num_nan=record.num_nan,
        num_infinite=record.num_infinite,
        num_rows=record.num_rows,
    )


NONFINITE_INPUT = Rule(
    name="all inputs and targets are finite",
    fault="non-finite input",
    priority=530,
    requires="A batch with NaN or infinity that is either one of the first 64, or one with a "
    "non-finite loss.",
    contradicted_by="A network that masks such values itself: its outputs stay finite.",
    abstains="A loss, gradient or weight was non-finite before. If outputs, losses and gradients "
    "stay finite, the finding on a training batch is only a warning.",
    settings=NonfiniteInputSettings(),
    judge=_judge,
)
