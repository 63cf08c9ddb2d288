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
"""Maximum change that counts as rounding, as a fraction of the largest absolute value of the
output."""

_MAX_ROWS = 8
"""Maximum number of rows of a batch on which the copy runs. The copy runs on all rows if the rows
may be in another dimension than the first, or if weights are perturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbationEffect:
    """Effect of a perturbation on the compared outputs.

    Each change is divided by the largest absolute value of the unperturbed output.
    """

    num_changed: int
    """Number of perturbed positions, rows or parameters."""
    largest_effect: float
    """Largest change of a compared output."""
    real_token_effect: float = float("nan")
    """Largest change of a compared output if real tokens are perturbed instead of padding. Measured
    only by ``perturb_padding``; otherwise NaN."""
    earlier_effect: float = float("nan")
    """Largest change of an output before the first perturbed position. NaN unless
    ``with_first_perturbed`` is set. If it is set, ``largest_effect`` also includes the output at
    this position."""
    parameters: tuple[nn.Parameter, ...] = ()
    """Perturbed parameters."""


def perturb_later_tokens(
    network: nn.Module,
    call_args: CallArguments,
    ids: Tensor,
    *,
    position_dim: int = 1,
    with_first_perturbed: bool = False,
) -> PerturbationEffect | None:
    """Perturb the second half of each row of tokens, and compare the outputs of the first half.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        ids: Token ids, one of the tensor arguments.
        position_dim: Dimension of ``ids`` that contains the positions, 0 or 1.
        with_first_perturbed: Whether to compare the output at the first perturbed token, too.

    Returns:
        The effect; None if it cannot be measured.
    """
    distinct_ids = ids.detach().unique()
    if len(distinct_ids) < 2:
        return None

    def perturb(second_half: Tensor) -> Tensor:
        # Each token becomes another token of the batch, because the network may reject other ids.
        indices = torch.searchsorted(distinct_ids, second_half.contiguous())
        new_ids: Tensor = distinct_ids[(indices + 1) % len(distinct_ids)]
        return new_ids

    return _perturb_second_half(
        network,
        call_args,
        ids,
        perturb,
        accepts_scalars=False,
        position_dim=position_dim,
        with_first_perturbed=with_first_perturbed,
    )


def perturb_later_values(
    network: nn.Module, call_args: CallArguments, series: Tensor
) -> PerturbationEffect | None:
    """Exchange the second halves of the rows of a series; compare the outputs of the first halves.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        series: Tensor argument of floats, (rows, positions) or (rows, positions, 1).

    Returns:
        The effect; None if it cannot be measured.
    """
    if series.shape[0] < 2:
        return None
    return _perturb_second_half(
        network, call_args, series, lambda second_half: second_half.roll(1, 0), accepts_scalars=True
    )


def _perturb_second_half(
    network: nn.Module,
    call_args: CallArguments,
    values: Tensor,
    perturb: Callable[[Tensor], Tensor],
    *,
    accepts_scalars: bool,
    position_dim: int = 1,
    with_first_perturbed: bool = False,
) -> PerturbationEffect | None:
    """Apply ``perturb`` to the second half of each row, and compare outputs of the first half.

    Outputs with a vector per position are compared. If ``accepts_scalars`` is set, outputs with a
    single value per position are compared, too.
    """
    num_positions = values.shape[position_dim]
    num_unchanged = num_positions // 2
    with disposable_copy(network, call_args) as network_copy:
        if network_copy is None:
            return None
        # Rows are only dropped if the first dimension contains the rows.
        truncated_args, kept_rows = (
            _truncate_rows(call_args, values) if position_dim else (call_args, slice(None))
        )
        new_values = values.detach()[kept_rows].clone()
        second_half = new_values.narrow(position_dim, num_unchanged, num_positions - num_unchanged)
        second_half.copy_(perturb(second_half))
        new_args = _replace_rows(truncated_args, values, new_values, kept_rows)
        pairs: list[tuple[Tensor, Tensor]] = []
        for outputs in _compare_runs(network_copy, truncated_args, new_args):
            unperturbed, perturbed = (
                _with_features_last(output, new_values.shape[:2], accepts_scalars=accepts_scalars)
                for output in outputs
            )
            if (
                unperturbed is not None
                and perturbed is not None
                and unperturbed.shape == perturbed.shape
            ):
                pairs.append((unperturbed, perturbed))
        if not pairs:
            return None

        def effect_before(end: int) -> float:
            return _relative_effect(
                [(a.narrow(position_dim, 0, end), b.narrow(position_dim, 0, end)) for a, b in pairs]
            )

        return PerturbationEffect(
            num_changed=num_positions - num_unchanged,
            largest_effect=effect_before(num_unchanged + with_first_perturbed),
            earlier_effect=effect_before(num_unchanged) if with_first_perturbed else float("nan"),
        )


def _with_features_last(
    output: Tensor, shape: torch.Size, *, accepts_scalars: bool
) -> Tensor | None:
    """Return an output with a vector per position as a tensor of shape (*shape, features).

    Args:
        output: Output of the network. Its shape may also be (rows, features, positions), which
            convolutions return and cross entropy expects.
        shape: (rows, positions) or (positions, rows).
        accepts_scalars: Whether to also return an output of exactly ``shape``, with a single value
            per position.

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
        values: Input whose first dimension contains the rows of the batch.

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
        # Rows are replaced, not exchanged: without a positional encoding, attention over rows does
        # not depend on the order of the rows.
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
    """Perturb the embeddings of padding, and in other passes the embeddings of real tokens.

    The outputs at unperturbed real tokens are compared.

    Returns:
        The effect; None if it cannot be measured, or if perturbed rows change the outputs of other
        rows. The first dimension then probably contains positions, not rows.
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
        # The first real token may be a class token and is not perturbed. The other real tokens
        # are perturbed in two runs: tokens with even numbers in the first run, tokens with odd
        # numbers in the second run.
        token_numbers = is_real.cumsum(1)  # the first real token of each row has number 1
        real_halves = [
            is_real & (token_numbers > 1) & (token_numbers % 2 == parity) for parity in (0, 1)
        ]
        if not bool(is_padding.any()) or not bool(real_halves[0].any()):
            return None
        is_even_row = torch.arange(len(is_padding), device=is_padding.device) % 2 == 0
        no_positions = torch.zeros_like(is_padding)
        even_rows = is_even_row[:, None].expand_as(is_padding)
        runs: list[list[Tensor]] = []
        for is_perturbed in (no_positions, no_positions, is_padding, even_rows, *real_halves):
            outputs = run_with_perturbed_embeddings(network_copy, truncated_args, ids, is_perturbed)
            if outputs is None or len(outputs) != len(runs[0] if runs else outputs):
                return None
            runs.append(outputs)
        unperturbed, repeated, padding_outputs, row_outputs, *real_outputs = runs
        repeatable_indices = [
            i for i, output in enumerate(unperturbed) if torch.equal(output, repeated[i])
        ]
        if not repeatable_indices:
            return None
        row_pairs = [
            (unperturbed[i], row_outputs[i])
            for i in repeatable_indices
            if unperturbed[i].shape[:1] == is_padding.shape[:1]
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
                [
                    _select_positions(unperturbed[i], outputs[i], is_real & ~excluded)
                    for i in repeatable_indices
                ]
            )

        half_effects = [effect(*pair) for pair in zip(real_outputs, real_halves, strict=True)]
        real_token_effect = (
            float("nan") if any(map(math.isnan, half_effects)) else max(half_effects)
        )
        # The effect of padding is measured at the same tokens as the effect of the first half: the
        # real tokens outside this half. Therefore the two effects can be compared.
        # ``real_token_effect`` also includes the effect of the second half at tokens outside it.
        return PerturbationEffect(
            num_changed=int(is_padding.sum()),
            largest_effect=effect(padding_outputs, real_halves[0]),
            real_token_effect=real_token_effect,
        )


def perturb_weights(
    network: nn.Module,
    call_args: CallArguments,
    parameter_names: Sequence[str],
    output_indices: Sequence[int],
) -> PerturbationEffect | None:
    """Perturb the given parameters, and compare the given outputs.

    Args:
        network: Network to copy.
        call_args: Arguments of the network.
        parameter_names: Names of the parameters to perturb.
        output_indices: Indices of the floating-point output tensors to compare.

    Returns:
        The effect; None if it cannot be measured.
    """
    with disposable_copy(network, call_args) as network_copy:
        if network_copy is None:
            return None
        unperturbed, repeated = run_copy(network_copy, call_args), run_copy(network_copy, call_args)
        for name in parameter_names:
            network_copy.get_parameter(name).data.mul_(-0.5).add_(0.1)
        pair_by_index = _repeatable_pairs(unperturbed, repeated, run_copy(network_copy, call_args))
        pairs = [pair_by_index[i] for i in output_indices if i in pair_by_index]
        if not pairs:
            return None
        parameters = tuple(network.get_parameter(name) for name in parameter_names)
        return PerturbationEffect(
            num_changed=len(parameter_names),
            largest_effect=_relative_effect(pairs),
            parameters=parameters,
        )


def _compare_runs(
    network_copy: nn.Module, call_args: CallArguments, new_args: CallArguments
) -> Collection[tuple[Tensor, Tensor]]:
    """Run the copy with the old and the new arguments; return pairs of repeatable outputs."""
    unperturbed, repeated = run_copy(network_copy, call_args), run_copy(network_copy, call_args)
    return _repeatable_pairs(unperturbed, repeated, run_copy(network_copy, new_args)).values()


def _repeatable_pairs(
    unperturbed: list[Tensor] | None, repeated: list[Tensor] | None, perturbed: list[Tensor] | None
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return pairs of an unperturbed and a perturbed output by index, for repeatable outputs.

    ``unperturbed`` and ``repeated`` are the outputs of two passes without a perturbation. An output
    is repeatable if both passes return the same values. Return {} if an argument is None, because
    its pass raised an exception, or if the passes differ in their number of outputs.
    """
    if unperturbed is None or repeated is None or perturbed is None:
        return {}
    if not len(unperturbed) == len(repeated) == len(perturbed):
        return {}
    return {
        i: (output, perturbed[i])
        for i, output in enumerate(unperturbed)
        if torch.equal(output, repeated[i])
    }


def _truncate_rows(call_args: CallArguments, values: Tensor) -> tuple[CallArguments, slice]:
    """Return the arguments with at most the first 8 rows, and the slice of these rows.

    All rows are kept if another dimension has the same length, because it may contain the rows.
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
    """Return the arguments with ``new_values`` in place of tensors that equal the kept rows."""
    old_values = values[kept_rows]
    return map_tensors(
        truncated_args,
        lambda t: new_values if t.shape == old_values.shape and torch.equal(t, old_values) else t,
    )


def _select_positions(
    unperturbed: Tensor, perturbed: Tensor, is_selected: Tensor
) -> tuple[Tensor, Tensor]:
    """Return two outputs at selected positions; all values of outputs without positions."""
    if unperturbed.dim() >= 2 and unperturbed.shape[:2] == is_selected.shape:
        return unperturbed[is_selected], perturbed[is_selected]
    return unperturbed, perturbed


def _relative_effect(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the largest relative change from the first to the second tensor of a pair.

    The change is divided by the largest absolute value of the first tensor. Return NaN if a tensor
    contains NaN, if a first tensor contains infinite values, or if no pair can be compared.
    """
    effects = [
        float((first - second).abs().max() / first.abs().max().clamp_min(1e-12))
        for first, second in pairs
        if first.numel() and first.shape == second.shape
    ]
    if any(map(math.isnan, effects)):
        return float("nan")
    return max(effects, default=float("nan"))
