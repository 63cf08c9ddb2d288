"""Tests whether padding affects the outputs at real positions.

Shape legend: B = rows, L = positions, D = features, O = outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.probes.perturbation import (
    MAX_ROUNDING_EFFECT,
    effect,
    evaluation_copy,
    format_effect,
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

NAME = "padding"


def probe_padding(
    network: nn.Module, x: Tensor, *other_args: Tensor, padded: Tensor, seed: int
) -> ProbeResult:
    """Perturb padded positions and compare the outputs at real positions.

    For tokens, the output of the embedding is perturbed, because the network may compute its mask
    from the tokens. Inputs of floats are perturbed directly, so a network that computes its mask
    from the values of floats cannot be tested.

    Args:
        network: Maps ``(x, *other_args)`` to one output per position (B, L, ...) or per row (B, O).
        x: (B, L) tokens, or (B, L, D) floats.
        *other_args: Other arguments of forward, such as a mask or lengths; not perturbed.
        padded: (B, L), True at padded positions.
        seed: Seed of random operations in the network.

    Raises:
        ContractError: ``padded`` has the wrong shape or dtype, or the output is not one tensor of
            floats.
    """
    require_rows(x, min_rows=1)
    if padded.dtype != torch.bool or x.dim() < 2 or padded.shape != x.shape[:2]:
        raise ContractError(
            f"padded must be a bool tensor of shape {tuple(x.shape[:2])}, got {padded.dtype} of "
            f"shape {tuple(padded.shape)}.",
            fix="Pass x == pad_id, or positions at or after each row's length.",
        )
    is_real = ~padded
    if not bool((padded & is_real.any(dim=1, keepdim=True)).any()):
        return skipped(NAME, "No row has both padding and real positions.")
    with evaluation_copy(network, seed=seed) as network_copy:
        unperturbed_output = _output_with_perturbation(network_copy, x, other_args, None)
        repeated_output = _output_with_perturbation(network_copy, x, other_args, None)
        output_with_padding_perturbed = _output_with_perturbation(
            network_copy, x, other_args, padded
        )
        output_with_real_perturbed = _output_with_perturbation(network_copy, x, other_args, is_real)
    if (
        unperturbed_output is None
        or repeated_output is None
        or output_with_padding_perturbed is None
        or output_with_real_perturbed is None
    ):
        return skipped(
            NAME,
            "No nn.Embedding receives the tokens unchanged, so padding cannot be perturbed.",
            fix="Pass the part of the network after the embedding, and vectors as inputs.",
        )
    # Outputs at padding, and of rows that consist only of padding, are not compared.
    is_per_position = unperturbed_output.dim() >= 2 and unperturbed_output.shape[:2] == padded.shape
    is_compared = is_real if is_per_position else is_real.any(dim=1)
    if not bool(unperturbed_output[is_compared].isfinite().all()):
        return non_finite_output(NAME)
    if not torch.equal(unperturbed_output[is_compared], repeated_output[is_compared]):
        return not_repeatable(NAME)
    effect_of_padding = effect(
        unperturbed_output[is_compared], output_with_padding_perturbed[is_compared]
    )
    effect_of_real_positions = effect(
        unperturbed_output[is_compared], output_with_real_perturbed[is_compared]
    )
    outputs_text = "outputs at real positions" if is_per_position else "outputs of rows"
    return _result(
        effect_of_padding, effect_of_real_positions, padded, is_real, outputs_text=outputs_text
    )


def padding_mask(x: Tensor, network: nn.Module, *, pad_id: int | None) -> Tensor | None:
    """Return a mask (B, L) of the padding; None without exactly one declared padding token.

    Args:
        x: (B, L) tokens.
        network: May have an ``nn.Embedding`` with ``padding_idx``.
        pad_id: The padding token; None to use ``padding_idx`` of the network's embeddings.
    """
    if x.dim() != 2 or x.is_floating_point():
        return None
    if pad_id is None:
        embeddings = (m for m in network.modules() if isinstance(m, nn.Embedding))
        pad_ids = {e.padding_idx for e in embeddings if e.padding_idx is not None}
        if len(pad_ids) != 1:
            return None
        (pad_id,) = pad_ids
    return x == pad_id


def _result(
    effect_of_padding: float,
    effect_of_real_positions: float,
    padded: Tensor,
    is_real: Tensor,
    *,
    outputs_text: str,
) -> ProbeResult:
    numbers: dict[str, float | int | str] = {
        "padded_positions": int(padded.sum()),
        "real_positions": int(is_real.sum()),
        "effect_of_padding": effect_of_padding,
        "effect_of_real": effect_of_real_positions,
    }
    procedure = f"{int(padded.sum())} of {padded.numel()} positions are padding and were perturbed"
    if not effect_of_padding <= MAX_ROUNDING_EFFECT:  # true also for NaN
        return ProbeResult(
            name=NAME,
            outcome="fail",
            seen=f"{procedure}: {outputs_text} changed {format_effect(effect_of_padding)}. When "
            "real positions were perturbed, they changed "
            f"{format_effect(effect_of_real_positions)}.",
            numbers=numbers,
            why="Padding is treated as data: no mask, an inverted mask, a mean or last state over "
            "all positions, or a recurrent layer that runs backwards over the padding.",
            fix="Pass the mask to every layer that mixes positions, and pool real positions only.",
        )
    if not effect_of_real_positions > MAX_ROUNDING_EFFECT:
        observation = (
            f"{procedure}: {outputs_text} did not change. They did not change when real positions "
            "were perturbed, either."
        )
        return no_effect_at_all(NAME, observation, numbers)
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{procedure}: {outputs_text} did not change. When real positions were perturbed, "
        f"they changed {format_effect(effect_of_real_positions)}.",
        numbers=numbers,
    )


def _output_with_perturbation(
    network_copy: nn.Module, x: Tensor, other_args: tuple[Tensor, ...], positions: Tensor | None
) -> Tensor | None:
    """Return the output with some positions perturbed; None if no embedding received the tokens."""
    if x.is_floating_point():
        return output_of(
            network_copy, x if positions is None else _add_offset(x, positions), *other_args
        )
    with _perturb_embeddings(network_copy, x, positions) as embedding_calls:
        output = output_of(network_copy, x, *other_args)
    return output if embedding_calls else None


@contextmanager
def _perturb_embeddings(
    network_copy: nn.Module, x: Tensor, positions: Tensor | None
) -> Iterator[list[bool]]:
    """Perturb the output of every embedding of ``x``; the list gets one entry for each call."""
    embedding_calls: list[bool] = []

    def perturb_output(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not args or args[0].shape != x.shape or not torch.equal(args[0], x):
            return None
        embedding_calls.append(True)
        return None if positions is None else _add_offset(output, positions)

    embeddings = [m for m in network_copy.modules() if isinstance(m, nn.Embedding)]
    hooks = [embedding.register_forward_hook(perturb_output) for embedding in embeddings]
    try:
        yield embedding_calls
    finally:
        for hook in hooks:
            hook.remove()


def _add_offset(values: Tensor, positions: Tensor) -> Tensor:
    """Return the values (B, L, ...) with an offset added at the given positions."""
    mask = positions.reshape(*positions.shape, *[1] * (values.dim() - 2))
    # The offset follows a wave over the features of a position. A normalisation would remove an
    # offset that is equal for all features.
    wave = (
        torch.arange(values.shape[-1], dtype=values.dtype, device=values.device).mul(1.7).cos()
        if values.dim() > 2
        else torch.ones((), dtype=values.dtype)
    )
    return values + mask * wave * (values.std(correction=0) + 0.1)
