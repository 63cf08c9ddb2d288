"""Whether an output sees positions that come after it (TRACE-4).

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

NAME, REQUIREMENT = "causality", "TRACE-4"


def probe_causality(
    network: nn.Module, x: Tensor, *, causal: bool | None, y: Tensor | None, seed: int
) -> ProbeResult:
    """Change later positions of a copy's input and see whether earlier outputs move.

    Args:
        network: From (B, L) tokens or (B, L, D) numbers to an output per position (B, L, ...).
        x: A few rows.
        causal: Whether no output may see what comes after it; None when the targets tell: they
            are the inputs, one position later.
        y: The targets, read where ``causal`` is None.
        seed: Of what the copy draws.

    Raises:
        ContractError: The input has no rows, or the network gives no tensor of floats.
    """
    require_rows(x, at_least=1)
    if causal is False:
        return skipped(NAME, REQUIREMENT, "Outputs may see every position: declared not causal.")
    if x.dim() < 2 or x.shape[1] < 2:
        return skipped(
            NAME,
            REQUIREMENT,
            f"Inputs of shape {tuple(x.shape)} have no positions one after another.",
        )
    with evaluation_twin(network, seed=seed) as twin:
        plain = output_of(twin, x)
        reason = _no_positions(twin, x, plain)
        if reason:
            return skipped(NAME, REQUIREMENT, reason)
        if not torch.equal(plain, output_of(twin, x)):
            return ProbeResult(
                name=NAME,
                requirement=REQUIREMENT,
                outcome="insufficient",
                seen="Two passes over the same input differ, so no change can be traced back.",
                why="The network draws at random or holds a state in evaluation mode.",
                fix="See the probe 'modes' first.",
            )
        moved, control, cuts = _try_cuts(twin, x, plain)
    return _judged(moved, control, cuts, must=causal or _predicts_next(x, y))


def _try_cuts(
    twin: nn.Module, x: Tensor, plain: Tensor
) -> tuple[dict[int, float], float, list[int]]:
    """Return the effect on outputs before each cut, and the largest behind one."""
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


def _judged(moved: dict[int, float], control: float, cuts: list[int], *, must: bool) -> ProbeResult:
    asked = f"Positions from {', '.join(map(str, cuts))} on were changed, in turn"
    numbers: dict[str, float | int | str] = {"cuts": len(cuts), "cuts_that_leak": len(moved)}
    if moved:
        cut, share = max(moved.items(), key=lambda item: (item[1] != item[1], item[1]))
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="fail" if must else "insufficient",
            seen=f"{asked}: outputs at earlier positions moved at {len(moved)} of {len(cuts)} "
            f"cuts, by up to {share:.3g} of the largest output (cut at position {cut}).",
            numbers=numbers | {"worst_cut": cut, "largest_effect": share},
            why="Later positions leak into earlier outputs: no causal mask, one that is off by "
            "one, a layer that reads both ways, or a normalisation over positions."
            if must
            else "That is wrong only where an output must not know what comes after it, which "
            "neither the workload nor its targets say.",
            fix="Mask all later positions in every layer that mixes positions."
            if must
            else "Declare it on the workload: causal = True, or causal = False.",
        )
    if not control > ROUNDING:
        seen = f"{asked}: no output moved, not even those at the changed positions."
        return unmoved(NAME, REQUIREMENT, seen, numbers)
    return ProbeResult(
        name=NAME,
        requirement=REQUIREMENT,
        outcome="pass",
        seen=f"{asked}: no earlier output moved; later ones did, by up to {control:.3g}.",
        numbers=numbers | {"effect_on_later": control},
    )


def _no_positions(twin: nn.Module, x: Tensor, output: Tensor) -> str:
    """Return why the output is not one per position, or nothing.

    Equal sizes may be chance (10 classes, 10 rows of a window; as many channels in as out), so
    unless tokens give vectors the output must become shorter with the input.
    """
    shape = f"Inputs {tuple(x.shape)} give outputs {tuple(output.shape)}"
    if output.dim() < 2 or output.shape[:2] != x.shape[:2]:
        return f"{shape}: there is no output per position."
    if x.dim() == 2 and not x.is_floating_point() and output.dim() == 3:
        return ""
    try:
        shorter = output_of(twin, x[:, :-1])
    except Exception:  # the user's code, on an input that it may not be written for
        return f"{shape}, but a shorter input is refused: the second dimension is no position."
    if shorter.shape[:2] != (len(x), x.shape[1] - 1):
        return f"{shape}, but a shorter input gives {tuple(shorter.shape)}: not one per position."
    return ""


def _predicts_next(x: Tensor, y: Tensor | None) -> bool:
    """Tell whether the targets are the inputs one position later, in any column."""
    if y is None or y.shape[:2] != x.shape[:2] or y.dim() > 3:
        return False
    targets = y[:, :-1].reshape(len(y), y.shape[1] - 1, -1)
    inputs = x[:, 1:].reshape(len(x), x.shape[1] - 1, -1)
    return any(
        torch.equal(targets[..., t].to(inputs.dtype), inputs[..., i])
        for t in range(targets.shape[-1])
        for i in range(inputs.shape[-1])
    )
