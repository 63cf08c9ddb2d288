"""Detects losses that broadcast outputs against targets of another shape."""

import math

from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.losses import MANUAL_DIFFERENCE
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import group_by_function, training_loss_calls

_REGRESSION_LOSSES = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "poisson_nll_loss",
    MANUAL_DIFFERENCE,
)


def _count_pairs(input_shape: tuple[int, ...], target_shape: tuple[int, ...]) -> int:
    """Return the number of compared pairs after broadcasting two shapes."""
    num_dims = max(len(input_shape), len(target_shape))
    padded_shapes = [
        (1,) * (num_dims - len(shape)) + shape for shape in (input_shape, target_shape)
    ]
    return math.prod(max(a, b) for a, b in zip(*padded_shapes, strict=True))


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    calls = training_loss_calls(trace, *_REGRESSION_LOSSES)
    for (kind, _), records in group_by_function(calls).items():
        broadcast_calls = [
            r
            for r in records
            if _count_pairs(r.input_shape, r.target_shape)
            > max(math.prod(r.input_shape), math.prod(r.target_shape))
        ]
        if not broadcast_calls:
            continue
        record = broadcast_calls[0]
        num_pairs = _count_pairs(record.input_shape, record.target_shape)
        findings.append(
            rule.finding(
                severity="error",
                step=record.step + 1,
                what=f"{kind} compared outputs of shape {record.input_shape} with targets of shape "
                f"{record.target_shape}: {num_pairs:,} pairs instead of "
                f"{math.prod(record.input_shape):,}, in {len(broadcast_calls)} of {len(records)} "
                "sampled calls.",
                cause="Every output is compared with every target, so all outputs converge to one "
                "value, such as the mean target.",
                fix="Use one shape for both: apply squeeze(-1) to the tensor with the additional "
                "dimension, or unsqueeze(-1) to the other one.",
                num_pairs=num_pairs,
                num_broadcast_calls=len(broadcast_calls),
            )
        )
    return tuple(findings)


LOSS_BROADCASTING = Rule(
    name="outputs and targets of a loss have the same shape",
    fault="loss broadcasting",
    priority=510,
    requires="A call of a regression loss of torch.nn.functional with gradients enabled, or a "
    "subtraction of outputs and targets in the program's own loss code.",
    contradicted_by="An intentional loss over all pairs.",
    abstains="Broadcasting repeats only the outputs or only the targets, such as one target for "
    "all outputs.",
    settings=NoThresholds(),
    judge=_judge,
)
