"""Detects loss functions that receive probabilities instead of logits, or the reverse."""

import math
from dataclasses import dataclass

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.losses import MANUAL_CROSS_ENTROPY, MANUAL_LOGISTIC_LOSS, LossRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_calls import group_by_function, training_loss_calls


class LogitsProbabilityMixupSettings(Settings):
    """Thresholds of the rule ``LOGITS_PROBABILITY_MIXUP``."""

    tolerance: float = Field(
        1e-3,
        gt=0,
        description="Tolerance of three conditions: rows of probabilities sum to 1, probabilities "
        "are at least 0, and log-probabilities are at most 0.",
    )
    min_calls: int = Field(
        4,
        ge=1,
        description="A finding from the input values alone requires at least this number of "
        "sampled calls, and all of them must show the fault. A single call suffices if its input "
        "comes from a softmax or sigmoid, or if binary_cross_entropy receives values outside "
        "[0, 1].",
    )
    min_log_sum_deviation: float = Field(
        0.1,
        gt=0,
        description="For nll_loss, inputs above 0 count as a fault only if a row's sum of "
        "exp(input) over the classes deviates from 1 by more than this.",
    )


_CHECKED_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "kl_div",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy",
    MANUAL_CROSS_ENTROPY,
    MANUAL_LOGISTIC_LOSS,
)


def _are_probabilities(settings: LogitsProbabilityMixupSettings, record: LossRecord) -> bool:
    return (
        record.smallest >= -settings.tolerance
        and abs(record.min_row_sum - 1) < settings.tolerance
        and abs(record.max_row_sum - 1) < settings.tolerance
    )


@dataclass(frozen=True, slots=True)
class _Mixup:
    """A call of a loss function with another kind of input than the function expects."""

    received_text: str
    """Description of the values that the function received."""
    expected_text: str
    """Kind of values that the function expects."""
    is_conclusive: bool
    """Whether this call suffices for a finding. If not, all sampled calls must be mix-ups."""


def _find_mixup(settings: LogitsProbabilityMixupSettings, record: LossRecord) -> _Mixup | None:
    """Return the mix-up of one call; None if the function received the expected values."""
    producer = record.producer_node
    is_sigmoid, is_softmax = producer.startswith("Sigmoid"), producer.startswith("Softmax")
    activation_text = f"outputs of a {'sigmoid' if is_sigmoid else 'softmax'} in [0, 1]"
    # Manual losses are recorded only if their input is the output of a softmax or sigmoid.
    if record.kind in (MANUAL_CROSS_ENTROPY, MANUAL_LOGISTIC_LOSS):
        return _Mixup(activation_text, "logits", is_conclusive=True)
    if record.kind == "cross_entropy":
        if is_softmax or _are_probabilities(settings, record):
            return _Mixup("probabilities that sum to 1", "logits", is_conclusive=is_softmax)
        if is_sigmoid:
            return _Mixup(activation_text, "logits", is_conclusive=True)
    if record.kind == "binary_cross_entropy_with_logits":
        if is_sigmoid or is_softmax:
            return _Mixup(activation_text, "logits", is_conclusive=True)
        # Constant values are excluded: a layer with zero weights outputs constant logits, too.
        if producer and 0 <= record.smallest < record.largest <= 1:
            return _Mixup("only values in [0, 1]", "logits", is_conclusive=False)
    if record.kind == "nll_loss" and not producer.startswith("LogSoftmax"):
        if is_softmax:
            return _Mixup("probabilities", "log-probabilities", is_conclusive=True)
        # For nll_loss, the row sums are those of exp(input).
        is_unnormalized = (
            record.max_row_sum > 1 + settings.min_log_sum_deviation
            or record.min_row_sum < 1 - settings.min_log_sum_deviation
        )
        if record.largest > settings.tolerance and is_unnormalized:
            return _Mixup(
                "values above 0 whose exponentials do not sum to 1",
                "log-probabilities",
                is_conclusive=False,
            )
    if record.kind == "kl_div" and (is_softmax or _are_probabilities(settings, record)):
        return _Mixup("probabilities that sum to 1", "log-probabilities", is_conclusive=is_softmax)
    if record.kind == "binary_cross_entropy" and (record.smallest < 0 or record.largest > 1):
        return _Mixup("values outside [0, 1]", "probabilities", is_conclusive=True)
    return None


_UNKNOWN_PRODUCER = "operation that limits the values to [0, 1]"
"""Text that replaces ``{producer}`` in a fix if only the values show the fault."""

_FIX = {
    "cross_entropy": "Pass the output of the last linear layer to F.cross_entropy; "
    "remove the {producer}.",
    "binary_cross_entropy_with_logits": "Remove the {producer} before the loss function, "
    "which applies a sigmoid itself.",
    "nll_loss": "Pass the output of log_softmax to F.nll_loss, or use F.cross_entropy on logits.",
    "kl_div": "Pass log_softmax of the output to F.kl_div.",
    MANUAL_CROSS_ENTROPY: "Compute the loss from the output of the last linear layer; "
    "remove the {producer}.",
    MANUAL_LOGISTIC_LOSS: "Compute the loss from the output of the last linear layer; "
    "remove the {producer}.",
    "binary_cross_entropy": "Use F.binary_cross_entropy_with_logits, or a sigmoid before the loss.",
}


def _judge(rule: Rule[LogitsProbabilityMixupSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    calls = training_loss_calls(trace, *_CHECKED_LOSSES)
    for (kind, _), records in group_by_function(calls).items():
        mixups = [
            (r, mixup) for r in records if (mixup := _find_mixup(rule.settings, r)) is not None
        ]
        if not mixups:
            continue
        record, mixup = mixups[0]
        has_enough_calls = len(mixups) == len(records) >= rule.settings.min_calls
        if not mixup.is_conclusive and not has_enough_calls:
            continue
        # Binary logits may happen to be in [0, 1], so the user must confirm the finding. The other
        # signs, such as rows that sum to 1, are hardly a coincidence.
        needs_confirmation = not mixup.is_conclusive and kind == "binary_cross_entropy_with_logits"
        producer = (
            "sigmoid"
            if "sigmoid" in mixup.received_text
            else "softmax"
            if mixup.is_conclusive
            else _UNKNOWN_PRODUCER
        )
        effect_text = (
            "For values outside [0, 1] it raises an error; on a GPU, a device-side assertion fails."
            if kind == "binary_cross_entropy"
            else "The value of the loss is wrong, and its gradients are too small or point in "
            "another direction."
        )
        origin_text = f" (produced by {record.producer_node})" if record.producer_node else ""
        sums_text = (
            f", row sums {record.min_row_sum:.4g} to {record.max_row_sum:.4g}"
            if kind == "cross_entropy" and not math.isnan(record.min_row_sum)
            else ""
        )
        range_text = (
            ""
            if math.isnan(record.smallest)
            else f": {record.smallest:.4g} to {record.largest:.4g}"
        )
        findings.append(
            rule.finding(
                severity="confirm" if needs_confirmation else "error",
                step=record.step + 1,
                what=f"{kind} received {mixup.received_text}{origin_text} in {len(mixups)} of "
                f"{len(records)} sampled calls{range_text}{sums_text}.",
                cause=f"The function expects {mixup.expected_text}. {effect_text}",
                fix=_FIX[kind].format(producer=producer),
                smallest=record.smallest,
                largest=record.largest,
                num_mixups=len(mixups),
            )
        )
    return tuple(findings)


LOGITS_PROBABILITY_MIXUP = Rule(
    name="a loss function receives logits or probabilities as it expects",
    fault="logits-probability mix-up",
    priority=520,
    requires="A call of cross_entropy, nll_loss, kl_div, binary_cross_entropy or "
    "binary_cross_entropy_with_logits with gradients enabled; or a cross entropy or logistic loss "
    "that the program computes itself.",
    contradicted_by="Logits that are intentionally restricted to [0, 1].",
    abstains="All sampled calls receive the expected values. If only the values show the fault: "
    "one call receives the expected values, or fewer than four calls are sampled.",
    settings=LogitsProbabilityMixupSettings(),
    judge=_judge,
)
