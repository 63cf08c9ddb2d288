"""Tests whether outputs depend on later positions.

Shape legend: B = rows, L = positions, D = features, O = outputs of a position.
"""

import torch
from torch import Tensor, nn

from sluice.probes.result import ProbeResult, skipped, unmoved
from sluice.probes.twin import (
    ROUNDING,
    effect,
    evaluation_twin,
    other_values,
    output_of,
    require_rows,
)

NAME = "causality"


def probe_causality(
    network: nn.Module, x: Tensor, *, causal: bool | None, y: Tensor | None, seed: int
) -> ProbeResult:
    """Perturb later positions of the input and compare the outputs at earlier positions.

    Args:
        network: Maps (B, L) tokens or (B, L, D) floats to one output per position (B, L, ...).
        x: A few rows.
        causal: Whether outputs must not depend on later positions; None to infer it from the
            targets, which then are the inputs shifted by one position.
        y: Targets, used when ``causal`` is None.
        seed: Seed of random operations in the network.

    Raises:
        ContractError: The input has no rows, or the output is not one tensor of floats.
    """
    require_rows(x, at_least=1)
    if causal is False:
        return skipped(NAME, "The workload declares that outputs may depend on all positions.")
    if x.dim() < 2 or x.shape[1] < 2:
        return skipped(
            NAME,
            f"Inputs of shape {tuple(x.shape)} have no sequence dimension.",
        )
    with evaluation_twin(network, seed=seed) as twin:
        plain = output_of(twin, x)
        reason = _no_positions(twin, x, plain)
        if reason:
            return skipped(NAME, reason)
        if not torch.equal(plain, output_of(twin, x)):
            return ProbeResult(
                name=NAME,
                outcome="insufficient",
                seen="Two passes over the same input differ, so effects cannot be attributed.",
                why="The network is random or stateful in evaluation mode.",
                fix="See the probe 'modes' first.",
            )
        moved, control, cuts = _try_cuts(twin, x, plain)
    return _result(moved, control, cuts, must=causal or _predicts_next(x, y))


def _try_cuts(
    twin: nn.Module, x: Tensor, plain: Tensor
) -> tuple[dict[int, float], float, list[int]]:
    """Return the effect on outputs before each cut, and the largest effect after a cut."""
    length, other = x.shape[1], other_values(x)
    cuts = sorted({1, length // 2, length - 1})
    moved, control = {}, 0.0
    for cut in cuts:
        changed = x.clone()
        changed[:, cut:] = other[:, cut:]
        after = output_of(twin, changed)
        before_cut = effect(plain[:, :cut], after[:, :cut])
        if not before_cut <= ROUNDING:
            moved[cut] = before_cut
        control = max(control, effect(plain[:, cut:], after[:, cut:]))
    return moved, control, cuts


def _result(moved: dict[int, float], control: float, cuts: list[int], *, must: bool) -> ProbeResult:
    asked = f"Positions from {', '.join(map(str, cuts))} on were perturbed, in turn"
    numbers: dict[str, float | int | str] = {"cuts": len(cuts), "cuts_that_leak": len(moved)}
    if moved:
        cut, share = max(moved.items(), key=lambda item: (item[1] != item[1], item[1]))
        return ProbeResult(
            name=NAME,
            outcome="fail" if must else "insufficient",
            seen=f"{asked}: outputs at earlier positions changed at {len(moved)} of {len(cuts)} "
            f"cuts, by up to {share:.3g} of the largest output (cut at position {cut}).",
            numbers=numbers | {"worst_cut": cut, "largest_effect": share},
            why="Later positions leak into earlier outputs: no causal mask, a mask that is off by "
            "one, a bidirectional layer, or a normalisation over positions."
            if must
            else "This is a fault only if outputs must not depend on later positions, which "
            "neither the workload nor its targets state.",
            fix="Mask all later positions in every layer that mixes positions."
            if must
            else "Declare it in the workload: causal = True or causal = False.",
        )
    if not control > ROUNDING:
        seen = f"{asked}: no output changed, not even at the perturbed positions."
        return unmoved(NAME, seen, numbers)
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{asked}: earlier outputs did not change; later ones did, by up to {control:.3g}.",
        numbers=numbers | {"effect_on_later": control},
    )


def _no_positions(twin: nn.Module, x: Tensor, output: Tensor) -> str:
    """Return why the output is not one per position; empty when it is.

    Equal sizes may be a coincidence (10 classes and windows of 10 rows), so unless tokens are
    mapped to vectors, a shorter input must give a shorter output.
    """
    shape = f"Inputs {tuple(x.shape)} give outputs {tuple(output.shape)}"
    if output.dim() < 2 or output.shape[:2] != x.shape[:2]:
        return f"{shape}: not one output per position."
    if x.dim() == 2 and not x.is_floating_point() and output.dim() == 3:
        return ""
    try:
        shorter = output_of(twin, x[:, :-1])
    except Exception:  # user code, on an input that it may not support
        return f"{shape}, but a shorter input raises: the second dimension is not a sequence."
    if shorter.shape[:2] != (len(x), x.shape[1] - 1):
        return f"{shape}, but a shorter input gives {tuple(shorter.shape)}: not one per position."
    return ""


def _predicts_next(x: Tensor, y: Tensor | None) -> bool:
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
