"""Tests whether the output at a position depends on later positions of the input.

Shape legend: B = rows, L = positions, D = features, O = outputs of a position.
"""

import math

import torch
from torch import Tensor, nn

from sluice.probes.perturbation import (
    MAX_ROUNDING_EFFECT,
    effect,
    evaluation_copy,
    format_effect,
    other_values,
    output_of,
    require_rows,
)
from sluice.probes.result import (
    ProbeResult,
    no_effect_at_all,
    non_finite_output,
    not_repeatable,
    skipped,
)

NAME = "causality"


def probe_causality(
    network: nn.Module, x: Tensor, *, causal: bool | None, y: Tensor | None, seed: int
) -> ProbeResult:
    """Perturb later positions of the input and compare the outputs at earlier positions.

    Args:
        network: Maps (B, L) tokens or (B, L, D) floats to one output per position (B, L, ...).
        x: A few rows of input.
        causal: Whether outputs must not depend on later positions. If None, this is required when
            the targets are the inputs shifted by one position.
        y: Targets; used only if ``causal`` is None.
        seed: Seed of random operations in the network.

    Raises:
        ContractError: The input has no rows or fewer than two distinct values, or the output is not
            one tensor of floats.
    """
    require_rows(x, min_rows=1)
    if causal is False:
        return skipped(NAME, "The workload declares that outputs may depend on all positions.")
    if x.dim() < 2 or x.shape[1] < 2:
        return skipped(
            NAME,
            f"Inputs of shape {tuple(x.shape)} have no sequence dimension.",
        )
    with evaluation_copy(network, seed=seed) as network_copy:
        unperturbed_output = output_of(network_copy, x)
        reason = _why_no_positions(network_copy, x, unperturbed_output)
        if reason:
            return skipped(NAME, reason)
        if not bool(unperturbed_output.isfinite().all()):
            return non_finite_output(NAME)
        if not torch.equal(unperturbed_output, output_of(network_copy, x)):
            return not_repeatable(NAME)
        leak_by_cut, largest_later_effect, cuts = _perturb_after_cuts(
            network_copy, x, unperturbed_output
        )
    must_be_causal = causal or _is_next_position_target(x, y)
    return _result(leak_by_cut, largest_later_effect, cuts, must_be_causal=must_be_causal)


def _perturb_after_cuts(
    network_copy: nn.Module, x: Tensor, unperturbed_output: Tensor
) -> tuple[dict[int, float], float, list[int]]:
    """Perturb all positions from a cut on, for several cuts.

    Returns:
        The effect on the outputs before the cut, for each cut at which this effect exceeds
        rounding; the largest effect on the outputs from a cut on; and all cuts.
    """
    length, replacements = x.shape[1], other_values(x)
    cuts = sorted({1, length // 2, length - 1})
    leak_by_cut, largest_later_effect = {}, 0.0
    for cut in cuts:
        perturbed_x = x.clone()
        perturbed_x[:, cut:] = replacements[:, cut:]
        perturbed_output = output_of(network_copy, perturbed_x)
        leak = effect(unperturbed_output[:, :cut], perturbed_output[:, :cut])
        if not leak <= MAX_ROUNDING_EFFECT:  # true also for NaN
            leak_by_cut[cut] = leak
        largest_later_effect = max(
            largest_later_effect, effect(unperturbed_output[:, cut:], perturbed_output[:, cut:])
        )
    return leak_by_cut, largest_later_effect, cuts


def _result(
    leak_by_cut: dict[int, float],
    largest_later_effect: float,
    cuts: list[int],
    *,
    must_be_causal: bool,
) -> ProbeResult:
    procedure = (
        f"All positions from a cut on were perturbed, for the cuts {', '.join(map(str, cuts))}"
    )
    numbers: dict[str, float | int | str] = {"cuts": len(cuts), "cuts_that_leak": len(leak_by_cut)}
    if leak_by_cut:
        # NaN counts as the largest effect.
        cut, largest_effect = max(
            leak_by_cut.items(), key=lambda item: (math.isnan(item[1]), item[1])
        )
        return ProbeResult(
            name=NAME,
            outcome="fail" if must_be_causal else "insufficient",
            seen=f"{procedure}. Outputs before the cut changed for {len(leak_by_cut)} of "
            f"{len(cuts)} cuts, {format_effect(largest_effect)} (at cut {cut}).",
            numbers=numbers | {"worst_cut": cut, "largest_effect": largest_effect},
            why="Later positions leak into earlier outputs: no causal mask, a mask that is off by "
            "one, a bidirectional layer, or a normalisation over positions."
            if must_be_causal
            else "This is a fault only if outputs must not depend on later positions. The workload "
            "does not declare this, and its targets do not show it.",
            fix="Mask all later positions in every layer that mixes positions."
            if must_be_causal
            else "Declare in the workload whether outputs must not depend on later positions: "
            "causal = True or causal = False.",
        )
    if not largest_later_effect > MAX_ROUNDING_EFFECT:
        observation = f"{procedure}. No output changed, not even at the perturbed positions."
        return no_effect_at_all(NAME, observation, numbers)
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{procedure}. Outputs before the cut did not change; later outputs changed "
        f"{format_effect(largest_later_effect)}.",
        numbers=numbers | {"effect_on_later": largest_later_effect},
    )


def _why_no_positions(network_copy: nn.Module, x: Tensor, output: Tensor) -> str:
    """Return why the network does not give one output per position; empty if it does.

    Equal sizes of input and output may be a coincidence, such as 10 classes and windows of 10 rows.
    Therefore a shorter input must also give a shorter output. A network that maps tokens to a
    vector for each position is accepted without this test.
    """
    shapes_text = f"Inputs {tuple(x.shape)} give outputs {tuple(output.shape)}"
    if output.dim() < 2 or output.shape[:2] != x.shape[:2]:
        return f"{shapes_text}: not one output per position."
    if x.dim() == 2 and not x.is_floating_point() and output.dim() == 3:
        return ""
    try:
        shorter_output = output_of(network_copy, x[:, :-1])
    except Exception:  # the network may not support this length
        return (
            f"{shapes_text}, but a shorter input raises an error: the second dimension is not a "
            "sequence."
        )
    if shorter_output.shape[:2] != (len(x), x.shape[1] - 1):
        return (
            f"{shapes_text}, but a shorter input gives {tuple(shorter_output.shape)}: not one "
            "output per position."
        )
    return ""


def _is_next_position_target(x: Tensor, y: Tensor | None) -> bool:
    """Return whether the targets equal the inputs shifted by one position, in any column."""
    if y is None or y.shape[:2] != x.shape[:2] or y.dim() > 3:
        return False
    targets = y[:, :-1].reshape(len(y), y.shape[1] - 1, -1)
    inputs = x[:, 1:].reshape(len(x), x.shape[1] - 1, -1)
    return any(
        torch.equal(targets[..., t].to(inputs.dtype), inputs[..., i])
        for t in range(targets.shape[-1])
        for i in range(inputs.shape[-1])
    )
