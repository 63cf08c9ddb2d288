"""Perturbs the input or the weights of a copy of a network, and measures the effect on outputs.

The network itself does not change, and no random number of the program is consumed. The copy is in
evaluation mode and single precision, has no hooks, usually runs on few rows, and is discarded.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.trace.inspection.network_copies import (
    CallArguments,
    disposable_copy,
    map_tensors,
    run_copy,
    run_with_perturbed_embeddings,
)
from sluice.trace.inspection.padding import find_padding, is_token_batch, tensor_arguments

_RELATIVE_TOLERANCE = 1e-4
"""Maximum change of an output that counts as rounding, as a share of the largest output."""

_MAX_ROWS = 8
"""Maximum number of rows of a batch on which the copy runs. It runs on all rows if the rows may be
in another dimension than the first, or if weights are perturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbationEffect:
    """Effect of a perturbation on the compared outputs, relative to the largest output."""

    num_changed: int
    """Number of perturbed positions, rows or parameters."""
    largest_effect: float
    """Largest change of a compared output."""
    real_token_effect: float = float("nan")
    """Largest change of a compared output if real tokens are perturbed instead of padding. Measured
    only by ``perturb_padding``; otherwise NaN."""
    earlier_effect: float = float("nan")
    """Largest change of an output before the first perturbed position. NaN unless the output at
    this position is also compared (``with_first_changed``)."""
    parameters: tuple[nn.Parameter, ...] = ()
    """Perturbed parameters."""


def perturb_later_tokens(
    network: nn.Module,
    call_args: CallArguments,
    ids: Tensor,
    *,
    position_dim: int = 1,
    with_first_changed: bool = False,
) -> PerturbationEffect | None:
    """Perturb the second half of each row of tokens, and compare the outputs of the first half.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        ids: Tokens among the arguments.
        position_dim: Dimension of ``ids`` that contains the positions, 0 or 1.
        with_first_changed: Whether to also compare the output at the first changed token itself.

    Returns:
        The effect; None if it cannot be measured.
    """
    known_tokens = ids.detach().unique()
    if len(known_tokens) < 2:
        return None

    def change(part: Tensor) -> Tensor:
        # Each token becomes another token of the batch: the network may reject unknown tokens.
        index = torch.searchsorted(known_tokens, part.contiguous())
        other_tokens: Tensor = known_tokens[(index + 1) % len(known_tokens)]
        return other_tokens

    return _perturb_second_half(
        network,
        call_args,
        ids,
        change,
        accepts_scalars=False,
        position_dim=position_dim,
        with_first_changed=with_first_changed,
    )


def perturb_later_values(
    network: nn.Module, call_args: CallArguments, series: Tensor
) -> PerturbationEffect | None:
    """Exchange the second halves of rows of floats, and compare the outputs of the first halves.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        series: Floats among the arguments, (rows, positions) or (rows, positions, 1).

    Returns:
        The effect; None if it cannot be measured.
    """
    if series.shape[0] < 2:
        return None
    return _perturb_second_half(
        network, call_args, series, lambda part: part.roll(1, 0), accepts_scalars=True
    )


def _perturb_second_half(
    network: nn.Module,
    call_args: CallArguments,
    values: Tensor,
    change: Callable[[Tensor], Tensor],
    *,
    accepts_scalars: bool,
    position_dim: int = 1,
    with_first_changed: bool = False,
) -> PerturbationEffect | None:
    """Apply ``change`` to the second half of each row, and compare outputs of the first half.

    Outputs with a vector per position are compared; if ``accepts_scalars``, also outputs with a
    single value per position.
    """
    num_positions = values.shape[position_dim]
    num_unchanged = num_positions // 2
    with disposable_copy(network, call_args) as network_copy:
        if network_copy is None:
            return None
        # Rows are only dropped if the first dimension is the rows.
        truncated_args, kept_rows = (
            _truncate_rows(call_args, values) if position_dim else (call_args, slice(None))
        )
        new_values = values.detach()[kept_rows].clone()
        second_half = new_values.narrow(position_dim, num_unchanged, num_positions - num_unchanged)
        second_half.copy_(change(second_half))
        new_args = _replace_rows(truncated_args, values, new_values, kept_rows)
        pairs: list[tuple[Tensor, Tensor]] = []
        for outputs in _compare_runs(network_copy, truncated_args, new_args):
            plain, perturbed = (
                _with_features_last(output, new_values.shape[:2], accepts_scalars=accepts_scalars)
                for output in outputs
            )
            if plain is not None and perturbed is not None and plain.shape == perturbed.shape:
                pairs.append((plain, perturbed))
        if not pairs:
            return None

        def effect_before(end: int) -> float:
            return _relative_effect(
                [(a.narrow(position_dim, 0, end), b.narrow(position_dim, 0, end)) for a, b in pairs]
            )

        return PerturbationEffect(
            num_changed=num_positions - num_unchanged,
            largest_effect=effect_before(num_unchanged + with_first_changed),
            earlier_effect=effect_before(num_unchanged) if with_first_changed else float("nan"),
        )


def _with_features_last(
    output: Tensor, shape: torch.Size, *, accepts_scalars: bool
) -> Tensor | None:
    """Return an output with a vector per position as a tensor of shape (*shape, features).

    Args:
        output: Output of the network. It may also be (rows, features, positions), as convolutions
            return it and cross entropy takes it.
        shape: (rows, positions) or (positions, rows).
        accepts_scalars: Whether an output with a single value per position, and so of exactly
            ``shape``, is returned as well.

    Returns:
        None if the output has another shape.
    """
    if output.shape[:2] == shape and (output.dim() == 3 or (accepts_scalars and output.dim() == 2)):
        return output
    if output.dim() == 3 and (output.shape[0], output.shape[2]) == shape:
        return output.transpose(1, 2)
    return None


def perturb_other_rows(
    network: nn.Module, call_args: CallArguments, values: Tensor
) -> PerturbationEffect | None:
    """Replace every second row by the row before it, and compare the outputs of the other rows.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        values: Input whose first dimension is the rows of the batch.

    Returns:
        The effect; None if it cannot be measured, for example with a single row.
    """
    if values.shape[0] < 2:
        return None
    with disposable_copy(network, call_args) as network_copy:
        if network_copy is None:
            return None
        truncated_args, kept_rows = _truncate_rows(call_args, values)
        new_values = values.detach()[kept_rows].clone()
        # Exchanging rows would not suffice: without a positional encoding, attention over rows does
        # not depend on their order.
        new_values[1::2] = new_values[: len(new_values) // 2 * 2 : 2]
        new_args = _replace_rows(truncated_args, values, new_values, kept_rows)
        num_rows = len(new_values)
        pairs = [
            (output[::2], new_output[::2])
            for output, new_output in _compare_runs(network_copy, truncated_args, new_args)
            if output.shape[:1] == (num_rows,)
        ]
        if not pairs:
            return None
        return PerturbationEffect(num_changed=num_rows // 2, largest_effect=_relative_effect(pairs))


def perturb_padding(network: nn.Module, call_args: CallArguments) -> PerturbationEffect | None:
    """Perturb the embeddings of padding, and in other passes those of real tokens.

    The outputs at real tokens that are not perturbed are compared.

    Returns:
        The effect; None if it cannot be measured, or if perturbing some rows changes the outputs of
        the others: then the first dimension probably contains positions, not rows.
    """
    is_padding = find_padding(call_args)
    ids = next((t for t in tensor_arguments(call_args) if is_token_batch(t)), None)
    if is_padding is None or ids is None:
        return None
    with disposable_copy(network, call_args) as network_copy:
        if network_copy is None:
            return None
        truncated_args, kept_rows = _truncate_rows(call_args, ids)
        is_padding, ids = is_padding[kept_rows], ids[kept_rows]
        is_real = ~is_padding
        # The first real token may be a class token and is not perturbed. The others are perturbed
        # in two runs: tokens with even numbers in the first run, tokens with odd numbers in the
        # second run.
        token_number = is_real.cumsum(1)  # number of each real token in its row, from 1
        real_halves = [
            is_real & (token_number > 1) & (token_number % 2 == parity) for parity in (0, 1)
        ]
        if not bool(is_padding.any()) or not bool(real_halves[0].any()):
            return None
        is_even_row = torch.arange(len(is_padding), device=is_padding.device) % 2 == 0
        no_positions = torch.zeros_like(is_padding)
        even_rows = is_even_row[:, None].expand_as(is_padding)
        runs: list[list[Tensor]] = []
        for positions in (no_positions, no_positions, is_padding, even_rows, *real_halves):
            outputs = run_with_perturbed_embeddings(network_copy, truncated_args, ids, positions)
            if outputs is None or len(outputs) != len(runs[0] if runs else outputs):
                return None
            runs.append(outputs)
        plain, repeated, padding_outputs, row_outputs, *real_outputs = runs
        repeatable = [i for i, output in enumerate(plain) if torch.equal(output, repeated[i])]
        if not repeatable:
            return None
        row_pairs = [
            (plain[i], row_outputs[i])
            for i in repeatable
            if plain[i].shape[:1] == is_padding.shape[:1]
        ]
        # Perturbed even rows must not change the outputs of odd rows.
        if (
            _relative_effect([(a[~is_even_row], b[~is_even_row]) for a, b in row_pairs])
            > _RELATIVE_TOLERANCE
        ):
            return None

        def effect(outputs: list[Tensor], excluded: Tensor) -> float:
            """Return the change of outputs at real tokens, except those at ``excluded``."""
            return _relative_effect(
                [_select_positions(plain[i], outputs[i], is_real & ~excluded) for i in repeatable]
            )

        half_effects = [effect(*pair) for pair in zip(real_outputs, real_halves, strict=True)]
        real_token_effect = (
            float("nan") if any(map(math.isnan, half_effects)) else max(half_effects)
        )
        # The effect of padding is measured at the real tokens outside the first half. The effect of
        # this half is measured there, too, so the two effects can be compared.
        return PerturbationEffect(
            num_changed=int(is_padding.sum()),
            largest_effect=effect(padding_outputs, real_halves[0]),
            real_token_effect=real_token_effect,
        )


def perturb_weights(
    network: nn.Module,
    call_args: CallArguments,
    names: Sequence[str],
    output_indices: Sequence[int],
) -> PerturbationEffect | None:
    """Perturb some parameters, and compare some outputs.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        names: Names of the parameters to perturb.
        output_indices: Indices of the floating-point output tensors to compare.

    Returns:
        The effect; None if it cannot be measured.
    """
    with disposable_copy(network, call_args) as network_copy:
        if network_copy is None:
            return None
        plain, repeated = run_copy(network_copy, call_args), run_copy(network_copy, call_args)
        for name in names:
            network_copy.get_parameter(name).data.mul_(-0.5).add_(0.1)
        pair_by_index = _repeatable_pairs(plain, repeated, run_copy(network_copy, call_args))
        pairs = [pair_by_index[i] for i in output_indices if i in pair_by_index]
        if not pairs:
            return None
        parameters = tuple(network.get_parameter(name) for name in names)
        return PerturbationEffect(
            num_changed=len(names), largest_effect=_relative_effect(pairs), parameters=parameters
        )


def _compare_runs(
    network_copy: nn.Module, call_args: CallArguments, new_args: CallArguments
) -> Collection[tuple[Tensor, Tensor]]:
    """Run the copy with plain and perturbed arguments; return the pairs of repeatable outputs."""
    plain, repeated = run_copy(network_copy, call_args), run_copy(network_copy, call_args)
    return _repeatable_pairs(plain, repeated, run_copy(network_copy, new_args)).values()


def _repeatable_pairs(
    plain: list[Tensor] | None, repeated: list[Tensor] | None, perturbed: list[Tensor] | None
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return pairs of a plain and a perturbed output by index, for outputs that are repeatable.

    ``plain`` and ``repeated`` are the outputs of two passes without a perturbation. An output is
    repeatable if it is equal in both. {} if a pass raised an exception (its outputs are None), or
    if the passes differ in their number of outputs.
    """
    if plain is None or repeated is None or perturbed is None:
        return {}
    if not len(plain) == len(repeated) == len(perturbed):
        return {}
    return {
        i: (output, perturbed[i])
        for i, output in enumerate(plain)
        if torch.equal(output, repeated[i])
    }


def _truncate_rows(call_args: CallArguments, values: Tensor) -> tuple[CallArguments, slice]:
    """Return the arguments with at most the first 8 rows, and the slice of these rows.

    All rows are kept if another dimension has the same length, because it may be the rows.
    """
    num_rows = values.shape[0]
    other_lengths = {n for t in tensor_arguments(call_args) for n in t.shape[1:]}
    kept_rows = slice(0, num_rows if num_rows in other_lengths else min(num_rows, _MAX_ROWS))

    def truncate(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return tensor[kept_rows] if tensor.dim() and tensor.shape[0] == num_rows else tensor

    return map_tensors(call_args, truncate), kept_rows


def _replace_rows(
    truncated_args: CallArguments, values: Tensor, new_values: Tensor, kept_rows: slice
) -> CallArguments:
    """Return the arguments with ``new_values`` in place of tensors equal to the kept values."""
    original = values[kept_rows]
    return map_tensors(
        truncated_args,
        lambda t: new_values if t.shape == original.shape and torch.equal(t, original) else t,
    )


def _select_positions(
    plain: Tensor, perturbed: Tensor, is_selected: Tensor
) -> tuple[Tensor, Tensor]:
    """Return two outputs at selected positions; all values of outputs without positions."""
    if plain.dim() >= 2 and plain.shape[:2] == is_selected.shape:
        return plain[is_selected], perturbed[is_selected]
    return plain, perturbed


def _relative_effect(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the largest change from the first to the second tensor of a pair.

    It is given as a share of the largest absolute value of the first tensor. NaN if a tensor
    contains NaN, if a first tensor contains infinite values, or if no pair can be compared.
    """
    effects = [
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
        for a, b in pairs
        if a.numel() and a.shape == b.shape
    ]
    if any(map(math.isnan, effects)):
        return float("nan")
    return max(effects, default=float("nan"))
