"""Tests evaluation mode: repeatable outputs that do not depend on other rows of the batch.

Shape legend: B = rows of a batch.
"""

import torch
from torch import Tensor, nn

from sluice.probes.result import ProbeResult, failed
from sluice.probes.twin import ROUNDING, effect, evaluation_twin, output_of, require_rows

NAME = "modes"

_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_NORMS = (nn.modules.batchnorm._NormBase,)


def probe_modes(network: nn.Module, x: Tensor, *, seed: int) -> ProbeResult:
    """Run two passes in evaluation mode, and one with other rows in the batch.

    Args:
        network: Maps ``x`` to outputs whose first dimension is the batch.
        x: At least two rows.
        seed: Seed of random operations in the network.

    Raises:
        ContractError: ``x`` has fewer rows, or the output is not one tensor of floats.
    """
    require_rows(x, at_least=2)
    with evaluation_twin(network, seed=seed) as twin:
        still_training = [name or "the network" for name, m in twin.named_modules() if m.training]
        before = {name: value.clone() for name, value in twin.state_dict().items()}
        first, second = output_of(twin, x), output_of(twin, x)
        changed = [
            name for name, value in twin.state_dict().items() if not _same(before[name], value)
        ]
        half = len(x) // 2
        # Rows of the batch itself, because generated rows might not be valid inputs.
        beside = output_of(twin, torch.cat((x[:half], x[: len(x) - half])))
    return _result(first, second, beside, x, still_training, changed, _suspects(network))


def _result(
    first: Tensor,
    second: Tensor,
    beside: Tensor,
    x: Tensor,
    still_training: list[str],
    changed: list[str],
    suspects: tuple[list[str], list[str]],
) -> ProbeResult:
    half = len(x) // 2
    dropouts, norms = suspects
    repeat = effect(first, second)
    numbers: dict[str, float | int | str] = {"rows": len(x), "effect_of_repeating": repeat}
    if still_training:
        return failed(
            NAME,
            f"After eval(), {_list(still_training)} is still in training mode.",
            "The module overrides train(), or sets its mode itself.",
            "Call super().train(mode) in train(mode).",
            numbers,
        )
    if changed:
        return failed(
            NAME,
            f"A forward pass in evaluation mode changes {_list(changed)}.",
            "Running statistics are still updated: batch normalisation with training=True.",
            "Pass training=self.training, and update buffers in training mode only.",
            numbers,
        )
    if not _same(first, second):
        return failed(
            NAME,
            f"Two passes over the same {len(x)} rows in evaluation mode differ, by up to "
            f"{repeat:.3g} of the largest output.",
            "Dropout is still on, or another operation is random"
            + (f"; check {_list(dropouts)}." if dropouts else "."),
            "Use nn.Dropout, or pass training=self.training to the function.",
            numbers,
        )
    if first.dim() == 0 or len(first) != len(x):
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen=f"Two passes agree bit for bit; outputs of shape {tuple(first.shape)} are not one "
            f"for each of {len(x)} rows, so rows cannot be distinguished.",
            numbers=numbers,
            fix="Make the first dimension of the output the batch.",
        )
    share = effect(first[:half], beside[:half])
    control = effect(first[half:], beside[half:])
    numbers |= {"effect_of_other_rows": share, "effect_of_own_row": control}
    if not share <= ROUNDING:
        return failed(
            NAME,
            f"With {len(x) - half} other rows in the batch, the outputs of {half} rows change by "
            f"up to {share:.3g} of the largest output.",
            "The output of a row depends on the batch: batch normalisation with batch statistics, "
            "or a normalisation over rows" + (f"; check {_list(norms)}." if norms else "."),
            "Track running statistics and use them in evaluation mode.",
            numbers,
        )
    if not control > ROUNDING:
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="Two passes agree bit for bit, but outputs do not depend on their own rows.",
            numbers=numbers,
            why="The network does not react to its input.",
            fix="Inspect its weights: all may be zero, or all units inactive.",
        )
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"Two passes over {len(x)} rows agree bit for bit, no buffer changes, and {half} rows "
        f"give the same outputs with {len(x) - half} other rows.",
        numbers=numbers,
    )


def _suspects(network: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of dropouts, and of normalisations without running statistics."""
    named = list(network.named_modules())
    dropouts = [name for name, m in named if isinstance(m, _DROPOUTS)]
    norms = [
        name for name, m in named if isinstance(m, _NORMS) and getattr(m, "running_mean", 0) is None
    ]
    return dropouts, norms


def _same(one: Tensor, other: Tensor) -> bool:
    if one.is_floating_point():
        return bool(((one == other) | (one.isnan() & other.isnan())).all())
    return torch.equal(one, other)


def _list(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
