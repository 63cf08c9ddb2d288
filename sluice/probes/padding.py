"""Whether padding moves what is computed for real positions (TRACE-4).

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

NAME, REQUIREMENT = "padding", "TRACE-4"


def probe_padding(
    network: nn.Module, x: Tensor, *further: Tensor, padded: Tensor, seed: int
) -> ProbeResult:
    """Change padded positions in a copy and see whether real ones move.

    Of tokens the vectors are changed, right after they were looked up: a network that finds its
    padding by the token still finds it. Numbers are changed in the input itself, so a network that
    finds padding by its values has no answer here.

    Args:
        network: From ``(x, *further)`` to one output per position (B, L, ...) or per row (B, O).
        x: (B, L) tokens, or (B, L, D) numbers.
        *further: What else its forward takes, such as a mask or lengths; never changed.
        padded: (B, L), true where a position is padding.
        seed: Of what the copy draws.

    Raises:
        ContractError: ``padded`` does not fit, or the network gives no tensor of floats.
    """
    require_rows(x, at_least=1)
    if padded.dtype != torch.bool or x.dim() < 2 or padded.shape != x.shape[:2]:
        raise ContractError(
            f"padded must be true or false for each position {tuple(x.shape[:2])}, got "
            f"{tuple(padded.shape)} of {padded.dtype}.",
            fix="Hand over x == pad_id, or positions at or behind each row's length.",
        )
    real = ~padded & ~padded.all(dim=1, keepdim=True)
    if not bool((padded & real.any(dim=1, keepdim=True)).any()):
        return skipped(NAME, REQUIREMENT, "No row has both padding and real positions.")
    with evaluation_twin(network, seed=seed) as twin:
        runs = [_run(twin, x, further, chosen) for chosen in (None, None, padded, real)]
    plain, again, by_padding, by_real = runs
    if plain is None or again is None or by_padding is None or by_real is None:
        return skipped(
            NAME,
            REQUIREMENT,
            "No nn.Embedding looks the tokens up as they are, so padding cannot be changed.",
            fix="Probe the part of the network behind its embedding, with vectors.",
        )
    if not torch.equal(plain, again):
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="insufficient",
            seen="Two passes over the same input differ, so no change can be traced back.",
            why="The network draws at random or holds a state in evaluation mode.",
            fix="See the probe 'modes' first.",
        )
    return _judged(plain, by_padding, by_real, padded, real)


def padding_of(x: Tensor, network: nn.Module, *, pad_id: int | None) -> Tensor | None:
    """Return which positions (B, L) are padding; None when nothing says so.

    Args:
        x: (B, L) tokens.
        network: An ``nn.Embedding`` of it may declare ``padding_idx``.
        pad_id: The token of padding; None when only the network may know it.
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


def _judged(
    plain: Tensor, by_padding: Tensor, by_real: Tensor, padded: Tensor, real: Tensor
) -> ProbeResult:
    per_position = plain.dim() >= 2 and plain.shape[:2] == padded.shape
    # Of a row that is all padding nothing is asked.
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
    asked = f"{int(padded.sum())} of {padded.numel()} positions are padding and were changed"
    if not moved <= ROUNDING:
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="fail",
            seen=f"{asked}: {what} moved, by up to {moved:.3g} of the largest output (changes of "
            f"real positions: {control:.3g}).",
            numbers=numbers,
            why="Padding is read like data: no mask, an inverted one, a mean or a last state over "
            "all positions, or a recurrent layer that reads backwards over it.",
            fix="Hand the mask to every layer that mixes positions, and pool real positions only.",
        )
    if not control > ROUNDING:
        seen = f"{asked}: {what} did not move, but neither do they when real positions change."
        return unmoved(NAME, REQUIREMENT, seen, numbers)
    return ProbeResult(
        name=NAME,
        requirement=REQUIREMENT,
        outcome="pass",
        seen=f"{asked}: {what} did not move; with real positions they did, by {control:.3g}.",
        numbers=numbers,
    )


def _run(
    twin: nn.Module, x: Tensor, further: tuple[Tensor, ...], chosen: Tensor | None
) -> Tensor | None:
    """Run with chosen positions changed; None when tokens were looked up nowhere."""
    if x.is_floating_point():
        return output_of(twin, x if chosen is None else _shifted(x, chosen), *further)
    with _changed_vectors(twin, x, chosen) as met:
        output = output_of(twin, x, *further)
    return output if met else None


@contextmanager
def _changed_vectors(twin: nn.Module, x: Tensor, chosen: Tensor | None) -> Iterator[list[bool]]:
    met: list[bool] = []

    def change(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not args or args[0].shape != x.shape or not torch.equal(args[0], x):
            return None
        met.append(True)
        return None if chosen is None else _shifted(output, chosen)

    tables = [m for m in twin.modules() if isinstance(m, nn.Embedding)]
    hooks = [table.register_forward_hook(change) for table in tables]
    try:
        yield met
    finally:
        for hook in hooks:
            hook.remove()


def _shifted(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the values (B, L, ...) with a wave over the last dimension at chosen positions."""
    mask = chosen.reshape(*chosen.shape, *[1] * (values.dim() - 2))
    # Features of one position get different changes, so that a normalisation keeps them.
    wave = (
        torch.arange(values.shape[-1], dtype=values.dtype, device=values.device).mul(1.7).cos()
        if values.dim() > 2
        else torch.ones((), dtype=values.dtype)
    )
    return values + mask * wave * (values.std(correction=0) + 0.1)
