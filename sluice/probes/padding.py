"""Tests whether padding affects the outputs at real positions.

Shape legend: B = rows, L = positions, D = features, O = outputs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.probes.result import ProbeResult, skipped, unmoved
from sluice.probes.twin import ROUNDING, effect, evaluation_twin, output_of, require_rows

NAME = "padding"


def probe_padding(
    network: nn.Module, x: Tensor, *further: Tensor, padded: Tensor, seed: int
) -> ProbeResult:
    """Perturb padded positions and compare the outputs at real positions.

    For tokens, the embedding vectors are perturbed, so that a network which derives its mask from
    the tokens still finds the padding. Floats are perturbed in the input itself; a network that
    derives its mask from their values cannot be tested.

    Args:
        network: Maps ``(x, *further)`` to one output per position (B, L, ...) or per row (B, O).
        x: (B, L) tokens, or (B, L, D) floats.
        *further: Other arguments of forward, such as a mask or lengths; not perturbed.
        padded: (B, L), True at padded positions.
        seed: Seed of random operations in the network.

    Raises:
        ContractError: ``padded`` has the wrong shape or dtype, or the output is not one tensor of
            floats.
    """
    require_rows(x, at_least=1)
    if padded.dtype != torch.bool or x.dim() < 2 or padded.shape != x.shape[:2]:
        raise ContractError(
            f"padded must be a bool for each position {tuple(x.shape[:2])}, got "
            f"{tuple(padded.shape)} of {padded.dtype}.",
            fix="Pass x == pad_id, or positions at or after each row's length.",
        )
    real = ~padded & ~padded.all(dim=1, keepdim=True)
    if not bool((padded & real.any(dim=1, keepdim=True)).any()):
        return skipped(NAME, "No row has both padding and real positions.")
    with evaluation_twin(network, seed=seed) as twin:
        runs = [_run(twin, x, further, chosen) for chosen in (None, None, padded, real)]
    plain, again, by_padding, by_real = runs
    if plain is None or again is None or by_padding is None or by_real is None:
        return skipped(
            NAME,
            "No nn.Embedding receives the tokens unchanged, so padding cannot be perturbed.",
            fix="Test the part of the network after its embedding, with vectors.",
        )
    if not torch.equal(plain, again):
        return ProbeResult(
            name=NAME,
            outcome="insufficient",
            seen="Two passes over the same input differ, so effects cannot be attributed.",
            why="The network is random or stateful in evaluation mode.",
            fix="See the probe 'modes' first.",
        )
    return _result(plain, by_padding, by_real, padded, real)


def padding_of(x: Tensor, network: nn.Module, *, pad_id: int | None) -> Tensor | None:
    """Return which positions (B, L) are padding; None when no padding is declared.

    Args:
        x: (B, L) tokens.
        network: May have an ``nn.Embedding`` with ``padding_idx``.
        pad_id: The padding token; None to take it from the network.
    """
    if x.dim() != 2 or x.is_floating_point():
        return None
    if pad_id is None:
        tables = (m for m in network.modules() if isinstance(m, nn.Embedding))
        known = {t.padding_idx for t in tables if t.padding_idx is not None}
        if len(known) != 1:
            return None
        (pad_id,) = known
    return x == pad_id


def _result(
    plain: Tensor, by_padding: Tensor, by_real: Tensor, padded: Tensor, real: Tensor
) -> ProbeResult:
    per_position = plain.dim() >= 2 and plain.shape[:2] == padded.shape
    # Rows of padding only are not compared.
    watched = real if per_position else real.any(dim=1)
    moved = effect(plain[watched], by_padding[watched])
    control = effect(plain[watched], by_real[watched])
    numbers: dict[str, float | int | str] = {
        "padded_positions": int(padded.sum()),
        "real_positions": int(real.sum()),
        "effect_of_padding": moved,
        "effect_of_real": control,
    }
    what = "outputs at real positions" if per_position else "outputs of rows"
    asked = f"{int(padded.sum())} of {padded.numel()} positions are padding and were perturbed"
    if not moved <= ROUNDING:
        return ProbeResult(
            name=NAME,
            outcome="fail",
            seen=f"{asked}: {what} changed, by up to {moved:.3g} of the largest output (perturbed "
            f"real positions: {control:.3g}).",
            numbers=numbers,
            why="Padding is treated as data: no mask, an inverted mask, a mean or last state over "
            "all positions, or a recurrent layer that runs backwards over it.",
            fix="Pass the mask to every layer that mixes positions, and pool real positions only.",
        )
    if not control > ROUNDING:
        seen = f"{asked}: {what} did not change, nor do they when real positions change."
        return unmoved(NAME, seen, numbers)
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{asked}: {what} did not change; with real positions they did, by {control:.3g}.",
        numbers=numbers,
    )


def _run(
    twin: nn.Module, x: Tensor, further: tuple[Tensor, ...], chosen: Tensor | None
) -> Tensor | None:
    """Run with the chosen positions perturbed; None when no embedding received the tokens."""
    if x.is_floating_point():
        return output_of(twin, x if chosen is None else _shifted(x, chosen), *further)
    with _changed_vectors(twin, x, chosen) as embedded:
        output = output_of(twin, x, *further)
    return output if embedded else None


@contextmanager
def _changed_vectors(twin: nn.Module, x: Tensor, chosen: Tensor | None) -> Iterator[list[bool]]:
    embedded: list[bool] = []

    def change(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not args or args[0].shape != x.shape or not torch.equal(args[0], x):
            return None
        embedded.append(True)
        return None if chosen is None else _shifted(output, chosen)

    tables = [m for m in twin.modules() if isinstance(m, nn.Embedding)]
    hooks = [table.register_forward_hook(change) for table in tables]
    try:
        yield embedded
    finally:
        for hook in hooks:
            hook.remove()


def _shifted(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the values (B, L, ...) with a wave added at chosen positions."""
    mask = chosen.reshape(*chosen.shape, *[1] * (values.dim() - 2))
    # Features of a position get different offsets, so that a normalisation cannot remove them.
    wave = (
        torch.arange(values.shape[-1], dtype=values.dtype, device=values.device).mul(1.7).cos()
        if values.dim() > 2
        else torch.ones((), dtype=values.dtype)
    )
    return values + mask * wave * (values.std(correction=0) + 0.1)
