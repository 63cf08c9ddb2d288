"""Tests evaluation mode: the output of a row must be repeatable and not depend on other rows."""

import math

import torch
from torch import Tensor, nn

from sluice.base.pluralize import pluralize
from sluice.probes.perturbation import (
    MAX_ROUNDING_EFFECT,
    effect,
    evaluation_copy,
    format_effect,
    output_of,
    require_rows,
)
from sluice.probes.result import ProbeResult, failed, non_finite_output

NAME = "modes"

_DROPOUT_CLASSES = (nn.modules.dropout._DropoutNd,)
_NORM_CLASSES = (nn.modules.batchnorm._NormBase,)


def probe_modes(network: nn.Module, x: Tensor, *, seed: int) -> ProbeResult:
    """Compare passes in evaluation mode over the same rows, and with half of the rows replaced.

    Args:
        network: Maps ``x`` to outputs whose first dimension is the batch.
        x: At least two rows.
        seed: Seed of random operations in the network.

    Raises:
        ContractError: ``x`` has fewer than two rows, or the output is not one tensor of floats.
    """
    require_rows(x, min_rows=2)
    with evaluation_copy(network, seed=seed) as network_copy:
        modules_in_train_mode = [
            name or "the network" for name, m in network_copy.named_modules() if m.training
        ]
        state_before = {name: value.clone() for name, value in network_copy.state_dict().items()}
        first_output, second_output = output_of(network_copy, x), output_of(network_copy, x)
        changed_names = [
            name
            for name, value in network_copy.state_dict().items()
            if not _are_equal(state_before[name], value)
        ]
        half = len(x) // 2
        # Replace the second half by the first rows of the batch. Generated rows might not be valid
        # inputs.
        x_with_other_rows = torch.cat((x[:half], x[: len(x) - half]))
        output_with_other_rows = output_of(network_copy, x_with_other_rows)
    return _judge_outputs(
        first_output,
        second_output,
        output_with_other_rows,
        x,
        modules_in_train_mode,
        changed_names,
        _find_suspect_layers(network),
    )


def _judge_outputs(
    first_output: Tensor,
    second_output: Tensor,
    output_with_other_rows: Tensor,
    x: Tensor,
    modules_in_train_mode: list[str],
    changed_names: list[str],
    suspect_layers: tuple[list[str], list[str]],
) -> ProbeResult:
    half = len(x) // 2
    dropouts, norms = suspect_layers
    effect_of_repeating = effect(first_output, second_output)
    numbers: dict[str, float | int | str] = {
        "rows": len(x),
        "effect_of_repeating": effect_of_repeating,
    }
    if modules_in_train_mode:
        return failed(
            NAME,
            f"After eval(), {_format_names(modules_in_train_mode)} "
            f"{'is' if len(modules_in_train_mode) == 1 else 'are'} still in training mode.",
            "A module overrides train(), or sets self.training.",
            "Call super().train(mode) in train(mode).",
            numbers,
        )
    if changed_names:
        return failed(
            NAME,
            f"A forward pass in evaluation mode changes {_format_names(changed_names)}.",
            "Running statistics are updated in evaluation mode: batch normalisation with "
            "training=True.",
            "Pass training=self.training, and update buffers in training mode only.",
            numbers,
        )
    if not _are_equal(first_output, second_output):
        return failed(
            NAME,
            f"Two passes over the same {len(x)} rows in evaluation mode differ"
            + (
                f", by up to {effect_of_repeating:.3g} of the largest output."
                if math.isfinite(effect_of_repeating)
                else "."
            ),
            "Dropout is still on, or another operation is random"
            + (f"; check {_format_names(dropouts)}." if dropouts else "."),
            "Use nn.Dropout, or pass training=self.training to the dropout function.",
            numbers,
        )
    if not bool(first_output.isfinite().all()):
        return non_finite_output(NAME)
    if first_output.dim() == 0 or len(first_output) != len(x):
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="Two passes agree bit for bit. Outputs of shape "
            f"{tuple(first_output.shape)} do not have one entry for each of {len(x)} rows, so rows "
            "cannot be compared.",
            numbers=numbers,
            fix="Make the first dimension of the output the batch.",
        )
    if torch.equal(x[half:], x[: len(x) - half]):
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="Two passes agree bit for bit. The second half of the rows equals the first half, "
            "so the effect of other rows in the batch could not be tested.",
            numbers=numbers,
            fix="Pass rows that differ.",
        )
    effect_of_other_rows = effect(first_output[:half], output_with_other_rows[:half])
    effect_of_own_row = effect(first_output[half:], output_with_other_rows[half:])
    numbers |= {
        "effect_of_other_rows": effect_of_other_rows,
        "effect_of_own_row": effect_of_own_row,
    }
    if not effect_of_other_rows <= MAX_ROUNDING_EFFECT:  # true also for NaN
        return failed(
            NAME,
            f"The outputs of {pluralize(half, 'row')} change {format_effect(effect_of_other_rows)} "
            "if the other rows of the batch are replaced.",
            "The output of a row depends on the batch: batch normalisation with batch statistics, "
            "or a normalisation over rows" + (f"; check {_format_names(norms)}." if norms else "."),
            "Track running statistics and use them in evaluation mode.",
            numbers,
        )
    if not effect_of_own_row > MAX_ROUNDING_EFFECT:
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="Two passes agree bit for bit, but no output depends on the input of its row.",
            numbers=numbers,
            why="The output of the network does not depend on its input.",
            fix="Inspect the weights: all weights may be zero, or all units inactive.",
        )
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"Two passes over {len(x)} rows agree bit for bit, no buffer changes, and the outputs "
        f"of {pluralize(half, 'row')} are the same if the other rows of the batch are replaced.",
        numbers=numbers,
    )


def _find_suspect_layers(network: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of dropouts, and of normalisations without running statistics."""
    modules = list(network.named_modules())
    dropouts = [name for name, m in modules if isinstance(m, _DROPOUT_CLASSES)]
    norms = [
        name
        for name, m in modules
        if isinstance(m, _NORM_CLASSES) and getattr(m, "running_mean", 0) is None
    ]
    return dropouts, norms


def _are_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN."""
    if a.is_floating_point():
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    return torch.equal(a, b)


def _format_names(names: list[str]) -> str:
    names_text = ", ".join(f"'{name}'" for name in names[:3])
    return names_text if len(names) <= 3 else f"{names_text} and {len(names) - 3} more"
