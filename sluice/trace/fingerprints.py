"""Fingerprints of data and of random states, without drawing a random number."""

import random
import sys
import weakref
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sluice.trace.evidence.batches import FieldFact, FieldPrint, SketchFact

_WORD = 2**64
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_FIELDS = 8
_MOST_WAITING = 2**16
_FIRST = 32
_KEPT = 1024
"""Numbers of a sketch: sets up to this size are whole."""
_MOST_TENSORS, _NUMBERS_OF_EACH = 1024, 16
_MOST_NUMBERS, _COLUMNS = 2**14, 4
"""Of a batch, and those of them in which repeats are counted."""
_REPEATED = 0.05


LOADER, NETWORK, LOSS = range(3)
"""Where a batch is seen, in this order."""


class RowPrints:
    """Fingerprints of the last batch: a loader, a network and a loss see the same one.

    The same tensor at the same place again may hold other rows: numpy changes them untold.
    """

    def __init__(self) -> None:
        self._last: tuple[weakref.ref[Tensor], int, tuple[int, ...], int] | None = None

    def of(self, batch: Tensor, *, words: int, place: int) -> tuple[int, ...]:
        """Return what ``row_fingerprints`` does, as numbers."""
        version = -1 if batch.is_inference() else batch._version
        last = self._last
        is_known = (
            last is not None and last[3] < place and last[0]() is batch and last[1] == version
        )
        found = (
            last[2]
            if last is not None and is_known
            else tuple(row_fingerprints(batch, words=words).tolist())
        )
        self._last = weakref.ref(batch), version, found, place
        return found


def row_fingerprints(batch: Tensor, *, words: int) -> Tensor:
    """Return a 64-bit fingerprint of each row, from at most so many of its numbers.

    Equal rows of one type have equal fingerprints on every machine of the same byte order.

    Cost:
        One pass over rows x words whole numbers.
    """
    rows = batch.detach().reshape(batch.shape[0], -1)
    if rows.shape[1] > words:
        rows = rows[:, :: -(-rows.shape[1] // words)]
    if rows.dtype == torch.bool:
        rows = rows.to(torch.int8)
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj()).flatten(1)
    whole = rows.contiguous().view(_INTEGERS[rows.element_size()]).to(torch.int64)
    fingerprints: Tensor = (whole * _weights(whole.shape[1], whole.device)).sum(1)
    return fingerprints


@lru_cache(maxsize=32)
def _weights(count: int, device: torch.device) -> Tensor:
    # Odd numbers without pattern; products wrap around at 64 bits.
    return mixed(torch.arange(1, count + 1)).bitwise_or(1).to(device)


def mixed(numbers: Tensor) -> Tensor:
    """Return the mixing of splitmix64: near numbers become far ones."""
    value = numbers.to(torch.int64) * -0x61C8864680B583EB
    value = (value ^ _shifted(value, 30)) * -0x40A7B892E31B1A47
    value = (value ^ _shifted(value, 27)) * -0x6B2FB644ECCEEE15
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, by: int) -> Tensor:
    shifted: Tensor = (value >> by) & (2 ** (64 - by) - 1)  # without the sign
    return shifted


def sketch_of(mixed_numbers: Tensor) -> SketchFact:
    """Return the smallest of some mixed numbers, each once: a sample that is the same anywhere."""
    values = torch.unique(mixed_numbers)
    return SketchFact(values=tuple(values[:_KEPT].tolist()), is_whole=len(values) <= _KEPT)


class OrderFingerprint:
    """Fingerprints of a sequence of row numbers, in its order and in any order."""

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.count = 0
        self._ordered = 0
        self._any_order = 0
        self._first: list[int] = []
        self._known = torch.zeros(0, dtype=torch.int64)

    @property
    def first(self) -> tuple[int, ...]:
        """The first few numbers."""
        return tuple((self._first or self._waiting)[:_FIRST])

    def sketch(self) -> SketchFact:
        """Return a sample of the different numbers."""
        self._fold()
        return sketch_of(self._known)

    def add(self, numbers: Sequence[int]) -> None:
        """Take the next numbers."""
        self._waiting += numbers
        if len(self._waiting) >= _MOST_WAITING:
            self._fold()

    def digests(self) -> tuple[str, str]:
        """Return both fingerprints of what was taken so far."""
        self._fold()
        return f"{self._ordered:016x}", f"{self._any_order:016x}"

    def _fold(self) -> None:
        numbers = torch.tensor(self._waiting, dtype=torch.int64)
        told = mixed(numbers)
        place = mixed(torch.arange(self.count, self.count + len(numbers))) | 1
        self._ordered = (self._ordered + int((told * place).sum())) % _WORD
        self._any_order = (self._any_order + int(told.sum())) % _WORD
        self._first = self._first or self._waiting[:_FIRST]
        self._known = torch.unique(torch.cat([self._known, told]))[: _KEPT + 1]
        self.count += len(numbers)
        self._waiting = []


class FieldFingerprint:
    """A sample of the numbers that one tensor of floats has, over batches."""

    def __init__(self) -> None:
        self._known = torch.zeros(0, dtype=torch.int64)
        self._columns: list[Tensor] = []

    def add(self, tensor: Tensor) -> None:
        """Take the first rows of the next batch."""
        rows = tensor.detach().reshape(tensor.shape[0], -1)
        rows = rows[: max(_MOST_NUMBERS // rows.shape[1], 1), :_MOST_NUMBERS].cpu().contiguous()
        told = mixed(rows.view(_INTEGERS[rows.element_size()]))
        self._columns.append(told[:, :: -(-told.shape[1] // _COLUMNS)])
        if len(self._known) > _KEPT:
            told = told[told < self._known[-1]]
        self._known = torch.unique(torch.cat([self._known, told.flatten()]))[: _KEPT + 1]

    def fact(self, place: int) -> FieldPrint:
        """Return what was taken so far."""
        repeats = 1.0
        if len({some.shape[1] for some in self._columns}) == 1:
            columns = torch.cat(self._columns).T.contiguous().sort().values
            repeats = float((columns[:, 1:] == columns[:, :-1]).double().sum() / columns.numel())
        return FieldPrint(
            place=place,
            values=sketch_of(self._known),
            is_continuous=repeats <= _REPEATED,
        )


def random_states() -> tuple[int, int, int]:
    """Return fingerprints of torch's, Python's and numpy's random state, which stay as they are."""
    state = torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    theirs = 0
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        theirs = zlib.crc32(repr((kind, rest)).encode(), zlib.crc32(keys.tobytes()))
    return (
        int(row_fingerprints(state[None], words=state.numel())[0]),
        hash(random.getstate()),
        theirs,
    )


def state_fingerprint(state: Any) -> int:
    """Return a fingerprint of a network's state, whatever its keys are called; 0 for anything else.

    Cost:
        A few numbers of each tensor are read, from wherever it is.
    """
    if not isinstance(state, Mapping):
        return 0
    tensors = [v for v in state.values() if isinstance(v, Tensor) and v.is_floating_point()]
    # A network that is read from a file may have no numbers before.
    if not tensors or len(tensors) > _MOST_TENSORS or any(t.is_meta for t in tensors):
        return 0
    some = [t.detach().reshape(-1)[:_NUMBERS_OF_EACH].float().cpu() for t in tensors]
    return zlib.crc32(torch.cat(some).numpy().tobytes()) or 1


def bare(tensor: Tensor) -> Tensor | None:
    """Return a tensor without what a class of its own adds, as names of what its rows are.

    None where that class holds its numbers in another way, as a distributed tensor does.
    """
    kind = type(tensor)
    if kind is Tensor or kind is torch.nn.Parameter:
        return tensor
    has_numbers = not tensor.is_meta and "__torch_dispatch__" not in {
        name for base in kind.__mro__ if base is not Tensor for name in vars(base)
    }
    return tensor.as_subclass(Tensor) if has_numbers else None


def tensors_in(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch: alone, in a sequence or mapping, one level deep."""
    if isinstance(batch, Tensor):
        batch = [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return []
    found = [bare(item) for item in batch if isinstance(item, Tensor)][:_MOST_FIELDS]
    return [tensor for tensor in found if tensor is not None]


def content_fingerprint(batch: Any) -> int:
    """Return a fingerprint of the rows of a batch, of at most 256 numbers each; 0 without any."""
    told = [t for t in tensors_in(batch) if t.dim() and t.numel() and t.layout == torch.strided]
    if not told:
        return 0
    rows = torch.cat([row_fingerprints(t, words=256) for t in told])
    return zlib.crc32(rows.cpu().numpy().tobytes()) or 1


def field_fact(tensor: Tensor) -> FieldFact:
    """Return what stands in one tensor of a batch."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not tensor.numel() or tensor.is_complex():
        nan = float("nan")
        return FieldFact(
            shape=shape, dtype=dtype, smallest=nan, largest=nan, mean=nan, num_non_finite=0
        )
    values = tensor.detach()
    if values.is_floating_point():
        low, high = torch.aminmax(values)
        mean = values.mean(dtype=torch.float64)
        # A sum or mean of anything that is not finite is not finite; few batches need the count.
        bad = torch.tensor(0) if bool(mean.isfinite()) else (~values.isfinite()).sum()
    else:
        low, high = torch.aminmax(values.to(torch.int64))
        mean, bad = values.double().mean(), torch.tensor(0)
    return FieldFact(
        shape=shape,
        dtype=dtype,
        smallest=float(low),
        largest=float(high),
        mean=float(mean),
        num_non_finite=int(bad),
    )
