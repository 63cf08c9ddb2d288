"""Findings and numbers of the gradient check for recurrent layers."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from sluice.base.errors import ContractError
from sluice.failfast.gradients.recurrent_state import (
    NormaliserRange,
    RecurrentGradients,
    slstm_normaliser_range,
)
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import EvidenceValue
from sluice.models.parameter_names import format_names


def judge_normalisers(
    states: Mapping[str, Tensor],
) -> tuple[tuple[NormaliserRange, ...], CheckOutcome | None]:
    """Return the range of every normaliser state, and a finding if a state is unsuitable.

    A state with NaN or infinity fails. A state so small that the division by it overflows warns.

    Args:
        states: Normaliser states by name of the sLSTM layer.
    """
    try:
        ranges = tuple(slstm_normaliser_range(layer, state) for layer, state in states.items())
    except ContractError as error:
        return (), CheckOutcome(
            outcome="fail",
            summary=error.what,
            fault="non-finite output",
            cause=error.cause,
            fix=error.fix,
        )
    vanishing_ranges = [r for r in ranges if r.is_vanishing]
    if not vanishing_ranges:
        return ranges, None
    names = format_names([r.layer for r in vanishing_ranges])
    return ranges, CheckOutcome(
        outcome="warn",
        summary=f"The normaliser state of {names} must stay well above 0; the lowest value is "
        f"{min(r.lowest for r in vanishing_ranges):g}.",
        fault="non-finite output",
        cause="The cell state is divided by the normaliser. The quotient overflows if the "
        "normaliser is too close to 0.",
        fix="Initialise the stabiliser with the first input gate, as sluice.models.slstm does.",
    )


def judge_forget_gates(gradients: Sequence[RecurrentGradients]) -> CheckOutcome | None:
    """Return a warning when a forget gate has a gradient of exactly 0."""
    layers = [g.layer for g in gradients if g.forget_bias_norm == 0]
    if not layers:
        return None
    return CheckOutcome(
        outcome="warn",
        summary=f"The forget gate's bias gradient is exactly 0 in {format_names(layers)}.",
        fault="zero gradients",
        cause="No state is carried from row to row: the window has one row (seq_len 1), or the "
        "output is read before the recurrence has processed a second row.",
        fix="Raise seq_len, or read the output of each direction after its last row.",
    )


def recurrent_numbers(
    gradients: Sequence[RecurrentGradients], ranges: Sequence[NormaliserRange]
) -> dict[str, EvidenceValue]:
    """Return gradient norms and normaliser ranges as named numbers; {} without recurrent layers."""
    numbers: dict[str, EvidenceValue] = {}
    for layer_gradients in gradients:
        if layer_gradients.forget_bias_norm is not None:
            numbers[f"forget_bias_norm_{layer_gradients.layer}"] = layer_gradients.forget_bias_norm
        if layer_gradients.hidden_norm is not None:
            numbers[f"hidden_norm_{layer_gradients.layer}"] = layer_gradients.hidden_norm
    for layer_range in ranges:
        numbers[f"lowest_normaliser_{layer_range.layer}"] = layer_range.lowest
        numbers[f"highest_normaliser_{layer_range.layer}"] = layer_range.highest
    return numbers
