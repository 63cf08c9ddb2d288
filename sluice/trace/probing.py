"""Changes the input or the weights of a copy of a network, and sees what moves (TRACE-4).

The network itself is not touched, and no random number of the program is used: the copy is in
evaluation mode, on few rows, in single precision, without hooks, and is thrown away.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from sluice.trace import randomness
from sluice.trace.masks import arguments, is_tokens, padding_in

_MOST_PARAMETERS = 20_000_000
"""Numbers in a network that is copied."""

_MOST_NUMBERS = 4_000_000
"""Numbers in the arguments of a pass."""

_ROUNDING = 1e-4
"""Of the largest number: what moves less was not moved."""

_ROWS = 8
"""Rows of the batch that are used, where the arguments tell what a row is."""

Given = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Probe:
    """What a change did; see ``ProbeFact``."""

    changed: int
    largest_effect: float
    real_effect: float = float("nan")
    parameters: tuple[nn.Parameter, ...] = ()


def later_tokens(
    network: nn.Module, given: Given, ids: Tensor, *, along: int = 1, own: bool = False
) -> Probe | None:
    """Change the second half of each row of tokens; None when that cannot be tried.

    Args:
        network: Is copied.
        given: Its arguments.
        ids: Of these, the tokens.
        along: The dimension of their positions, the first or the second.
        own: Watch the output at the first of the tokens that change, too.
    """
    if not _can_copy(network, given):
        return None
    known = ids.detach().unique()
    if len(known) < 2:
        return None

    def change(part: Tensor) -> Tensor:
        # Every token becomes another one of the batch: none is unknown to the network.
        place = torch.searchsorted(known, part.contiguous())
        following: Tensor = known[(place + 1) % len(known)]
        return following

    return _later(network, given, ids, change, _by_position, along=along, own=own)


def later_values(network: nn.Module, given: Given, series: Tensor) -> Probe | None:
    """Give the second half of each row of numbers to another row; None if it cannot be tried."""
    if not _can_copy(network, given) or series.shape[0] < 2:
        return None
    return _later(network, given, series, lambda part: part.roll(1, 0), _numbers_by_position)


def _later(
    network: nn.Module,
    given: Given,
    values: Tensor,
    change: Callable[[Tensor], Tensor],
    by_position: Callable[[Tensor, Tensor, tuple[int, ...]], Iterator[tuple[Tensor, Tensor]]],
    *,
    along: int = 1,
    own: bool = False,
) -> Probe | None:
    num = values.shape[along]
    kept = num // 2
    with _copied(network) as twin:
        if twin is None:
            return None
        # What a row is, the first dimension must tell.
        few, cut = _few_rows(given, values) if along else (given, slice(None))
        other = values.detach()[cut].clone()
        later = other.narrow(along, kept, num - kept)
        later.copy_(change(later))
        first, again = _run(twin, few), _run(twin, few)
        second = _run(twin, _replaced(few, values, other, cut))
        if first is None or again is None or second is None:
            return None
        shape = tuple(other.shape[:2])
        pairs = [
            (told.narrow(along, 0, kept + own), moved.narrow(along, 0, kept + own))
            for a, b, c in zip(first, second, again, strict=True)
            if torch.equal(a, c)
            for told, moved in by_position(a, b, shape)
        ]
        if not pairs:
            return None
        return Probe(num - kept, _effect(pairs))


def _by_position(
    one: Tensor, other: Tensor, shape: tuple[int, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield outputs with a vector for each position: (rows, positions, D), or (rows, D, positions).

    The second is what convolutions give, and cross entropy takes.
    """
    if one.dim() != 3 or one.shape != other.shape:
        return
    if tuple(one.shape[:2]) == shape:
        yield one, other
    elif (one.shape[0], one.shape[2]) == shape:
        yield one.transpose(1, 2), other.transpose(1, 2)


def _numbers_by_position(
    one: Tensor, other: Tensor, shape: tuple[int, ...]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield outputs with a number, or a vector, for each position."""
    if one.shape == other.shape and tuple(one.shape) == shape:
        yield one, other
    else:
        yield from _by_position(one, other, shape)


def padding(network: nn.Module, given: Given) -> Probe | None:
    """Change the vectors of padding, then those of real tokens; None if it cannot be tried.

    Nor can it where one row moves another: then the first dimension is that of the positions.
    """
    pads = padding_in(given)
    ids = next((t for t in arguments(given) if is_tokens(t)), None)
    if pads is None or ids is None or not _can_copy(network, given):
        return None
    with _copied(network) as twin:
        if twin is None:
            return None
        few, cut = _few_rows(given, ids)
        pads, shown = pads[cut], ids[cut]
        real = ~pads
        # The first real position may stand for its row; the others move in two turns.
        order = real.cumsum(1)
        turns = [real & (order > 1) & (order % 2 == turn) for turn in (0, 1)]
        if not bool(pads.any()) or not bool(turns[0].any()):
            return None
        every_second = torch.arange(len(pads), device=pads.device) % 2 == 0
        still, rows = torch.zeros_like(pads), every_second[:, None].expand_as(pads)
        runs = [_run_with_noise(twin, few, shown, c) for c in (still, still, pads, rows, *turns)]
        if any(run is None for run in runs):
            return None
        plain, again, by_pads, by_rows, *by_real = ([*(run or [])] for run in runs)
        same = [i for i, a in enumerate(plain) if torch.equal(a, again[i])]
        if not same:
            return None
        of_rows = [(plain[i], by_rows[i]) for i in same if plain[i].shape[:1] == pads.shape[:1]]
        if _effect([(a[~every_second], b[~every_second]) for a, b in of_rows]) > _ROUNDING:
            return None

        def effect(other: list[Tensor], moved: Tensor) -> float:
            return _effect([_watched(plain[i], other[i], real & ~moved) for i in same])

        by_turn = [effect(*pair) for pair in zip(by_real, turns, strict=True)]
        largest = float("nan") if any(map(math.isnan, by_turn)) else max(by_turn)
        return Probe(int(pads.sum()), effect(by_pads, turns[0]), largest)


def weights(
    network: nn.Module, given: Given, names: Sequence[str], used: Sequence[int]
) -> Probe | None:
    """Change some parameters and watch some outputs; None when that cannot be tried."""
    if not _can_copy(network, given):
        return None
    with _copied(network) as twin:
        if twin is None:
            return None
        first, again = _run(twin, given), _run(twin, given)
        for name in names:
            parameter = twin.get_parameter(name)
            parameter.data.mul_(-0.5).add_(0.1)
        second = _run(twin, given)
        if first is None or again is None or second is None:
            return None
        pairs = [
            (first[i], second[i])
            for i in used
            if i < min(len(first), len(second)) and torch.equal(first[i], again[i])
        ]
        if not pairs:
            return None
        changed = tuple(network.get_parameter(name) for name in names)
        return Probe(len(names), _effect(pairs), parameters=changed)


def _can_copy(network: nn.Module, given: Given) -> bool:
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return False  # the program's own, which would see passes that it did not make
    if sum(p.numel() for p in network.parameters()) > _MOST_PARAMETERS:
        return False
    if sum(t.numel() for t in arguments(given)) > _MOST_NUMBERS:
        return False
    return not randomness.has_own_generator(network)


@contextmanager
def _copied(network: nn.Module) -> Iterator[nn.Module | None]:
    """Give a copy that is thrown away, in a block that leaves no trace of its own."""
    with randomness.kept(), torch.no_grad():
        yield _copy(network)


def _copy(network: nn.Module) -> nn.Module | None:
    try:
        twin = copy.deepcopy(network)
    except Exception:  # it holds what cannot be copied, as tensors with a history
        return None
    for module in twin.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            hooks.clear()
        module.training = False  # train() would be a mark
    return twin.float()


def _run(twin: nn.Module, given: Given) -> list[Tensor] | None:
    """Return the outputs with a fraction; None when the network refuses."""
    args, kwargs = _mapped(given, lambda t: t.float() if t.is_floating_point() else t)
    device = next((t.device.type for t in twin.parameters()), "cpu")
    with torch.autocast(device, enabled=False):
        try:
            output = twin(*args, **kwargs)
        except Exception:  # the program's own code, on an input that it was not written for
            return None
    return [t.detach().clone() for t in floats_in(output)]


def _run_with_noise(
    twin: nn.Module, given: Given, ids: Tensor, chosen: Tensor
) -> list[Tensor] | None:
    """Run with the vectors of chosen positions changed, right after they were looked up."""

    def change(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if not args or not isinstance(args[0], Tensor) or args[0].shape != ids.shape:
            return None
        if not torch.equal(args[0], ids) or output.shape[:-1] != ids.shape:
            return None
        size = output.std() + 0.1
        wave = torch.arange(output.shape[-1], device=output.device).mul(1.7).cos() * size
        return output + chosen[..., None] * wave

    tables = [m for m in twin.modules() if isinstance(m, nn.Embedding)]
    if not tables:
        return None
    hooks = [table.register_forward_hook(change) for table in tables]
    try:
        return _run(twin, given)
    finally:
        for hook in hooks:
            hook.remove()


def _few_rows(given: Given, ids: Tensor) -> tuple[Given, slice]:
    """Return the arguments with fewer rows, where no other dimension is as long as the rows."""
    rows = ids.shape[0]
    others = {n for t in arguments(given) for n in t.shape[1:]}
    cut = slice(0, _ROWS if rows > _ROWS and rows not in others else rows)

    def fewer(tensor: Tensor) -> Tensor:
        return tensor[cut] if tensor.dim() and tensor.shape[0] == rows else tensor

    return _mapped(given, lambda t: fewer(t.detach())), cut


def _replaced(few: Given, ids: Tensor, other: Tensor, cut: slice) -> Given:
    shown = ids[cut]
    return _mapped(few, lambda t: other if t.shape == shown.shape and torch.equal(t, shown) else t)


def _mapped(given: Given, change: Callable[[Tensor], Tensor]) -> Given:
    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if type(value) in (list, tuple):
            return type(value)(one(item) for item in value)
        if type(value) is dict:
            return {key: one(item) for key, item in value.items()}
        return value

    args, kwargs = given
    return tuple(one(a) for a in args), {key: one(v) for key, v in kwargs.items()}


def floats_in(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of numbers with a fraction, however deep, in a fixed order."""
    if isinstance(output, Tensor):
        if output.is_floating_point() and type(output) in (Tensor, nn.Parameter):
            yield output
    elif isinstance(output, dict):
        for item in output.values():
            yield from floats_in(item)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from floats_in(item)


def _watched(one: Tensor, other: Tensor, watched: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers at watched positions, or all when there are no positions."""
    if one.dim() >= 2 and one.shape[:2] == watched.shape:
        return one[watched], other[watched]
    return one, other


def _effect(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the largest change, of the largest number; NaN when anything is not finite."""
    effects = [
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
        for a, b in pairs
        if a.numel() and a.shape == b.shape
    ]
    if any(e != e for e in effects):
        return float("nan")
    return max(effects, default=float("nan"))
