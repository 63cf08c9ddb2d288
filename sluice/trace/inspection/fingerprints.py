"""Fingerprints of data and random states, without drawing random numbers."""

import random
import sys
import weakref
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sluice.trace.records.batches import FieldRecord, FloatFieldRecord, SketchRecord

_MODULUS = 2**64
_INTEGER_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by element size [bytes]. Values of other types are read as integers of their
size."""
_MAX_FIELDS = 8
"""Number of first tensors of a batch that are inspected."""
_MAX_PENDING_INDICES = 2**16
"""Number of pending row indices at which they are added to the fingerprints."""
_NUM_FIRST_INDICES = 32
"""Maximum number of first row indices that are stored."""
_SKETCH_SIZE = 1024
"""Maximum number of hashes in a sketch. The sketch of a set with more distinct values is
incomplete."""
_MAX_STATE_TENSORS = 1024
"""Maximum number of float tensors of a state dict. A larger state dict has the fingerprint 0."""
_NUM_STATE_ELEMENTS = 16
"""Number of first elements of each tensor of a state dict that are fingerprinted."""
_MAX_SKETCHED_ELEMENTS = 2**14
"""Maximum number of elements of a float tensor that are sketched per batch."""
_MAX_REPEAT_COLUMNS = 4
"""Maximum number of columns of a float tensor in which repeated values are counted."""
_MAX_REPEATED_FRACTION = 0.05
"""The values of a tensor count as continuous if at most this fraction of them repeats another value
of the same column."""

LOADER, NETWORK, LOSS = range(3)
"""Stages at which a batch is fingerprinted, in their order within a step."""


class RowFingerprintCache:
    """Caches the row fingerprints of the last batch, which loader, network and loss often share.

    Fingerprints are only reused at a later stage of the step. At the same stage, the tensor may
    contain the rows of the next batch although its version counter is unchanged: writes through a
    NumPy array that shares the memory of the tensor do not change the counter.
    """

    def __init__(self) -> None:
        self._last_entry: tuple[weakref.ref[Tensor], int, tuple[int, ...], int] | None = None
        """Last batch, its version counter, its fingerprints, and the stage."""

    def fingerprint(self, batch: Tensor, *, sample_size: int, stage: int) -> tuple[int, ...]:
        """Return the ``row_fingerprints`` of a batch as integers."""
        version = -1 if batch.is_inference() else batch._version
        fingerprints: tuple[int, ...] | None = None
        if self._last_entry is not None:
            last_ref, last_version, last_fingerprints, last_stage = self._last_entry
            if last_stage < stage and last_ref() is batch and last_version == version:
                fingerprints = last_fingerprints
        if fingerprints is None:
            fingerprints = tuple(row_fingerprints(batch, sample_size=sample_size).tolist())
        self._last_entry = weakref.ref(batch), version, fingerprints, stage
        return fingerprints


def row_fingerprints(batch: Tensor, *, sample_size: int) -> Tensor:
    """Return a 64-bit fingerprint of each row, from at most ``sample_size`` of its elements.

    Equal rows of one dtype have equal fingerprints on all machines with the same byte order.

    Cost:
        One pass over rows x ``sample_size`` integers.
    """
    rows = batch.detach().reshape(batch.shape[0], -1)
    if rows.shape[1] > sample_size:
        rows = rows[:, :: -(-rows.shape[1] // sample_size)]
    if rows.dtype == torch.bool:
        rows = rows.to(torch.int8)
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj()).flatten(1)
    integers = rows.contiguous().view(_INTEGER_DTYPES[rows.element_size()]).to(torch.int64)
    fingerprints: Tensor = (integers * _hash_multipliers(integers.shape[1], integers.device)).sum(1)
    return fingerprints


@lru_cache(maxsize=32)
def _hash_multipliers(count: int, device: torch.device) -> Tensor:
    """Return odd pseudo-random numbers. Products with them wrap around at 64 bits."""
    return mix64(torch.arange(1, count + 1)).bitwise_or(1).to(device)


def mix64(numbers: Tensor) -> Tensor:
    """Return the splitmix64 hash of integers."""
    value = numbers.to(torch.int64) * -0x61C8864680B583EB
    value = (value ^ _unsigned_shift(value, 30)) * -0x40A7B892E31B1A47
    value = (value ^ _unsigned_shift(value, 27)) * -0x6B2FB644ECCEEE15
    return value ^ _unsigned_shift(value, 31)


def _unsigned_shift(value: Tensor, num_bits: int) -> Tensor:
    # A logical shift: without sign extension.
    shifted: Tensor = (value >> num_bits) & (2 ** (64 - num_bits) - 1)
    return shifted


def make_sketch(hashes: Tensor) -> SketchRecord:
    """Return a bottom-k sketch of a set of hashes: the smallest distinct hashes."""
    values = torch.unique(hashes)
    return SketchRecord(
        values=tuple(values[:_SKETCH_SIZE].tolist()), is_complete=len(values) <= _SKETCH_SIZE
    )


def _merge_hashes(hashes: Tensor, new_hashes: Tensor) -> Tensor:
    """Return the smallest distinct hashes of both tensors.

    One hash more than in a sketch is kept, which shows whether the sketch is complete.
    """
    distinct_hashes: Tensor = torch.unique(torch.cat([hashes, new_hashes]))
    return distinct_hashes[: _SKETCH_SIZE + 1]


class OrderFingerprint:
    """Fingerprints of a sequence of row indices: one depends on the order, the other does not."""

    def __init__(self) -> None:
        self._pending_indices: list[int] = []
        """Added row indices that are not in the fingerprints yet."""
        self.num_indices = 0
        """Number of row indices in the fingerprints. All added row indices are counted after a call
        of ``sketch`` or ``digests``."""
        self._ordered_digest = 0
        self._unordered_digest = 0
        self._first_indices: list[int] = []
        self._smallest_hashes = torch.zeros(0, dtype=torch.int64)

    @property
    def first_indices(self) -> tuple[int, ...]:
        """The first row indices of the sequence, at most 32."""
        return tuple(
            [*self._first_indices, *self._pending_indices[:_NUM_FIRST_INDICES]][:_NUM_FIRST_INDICES]
        )

    def sketch(self) -> SketchRecord:
        """Return a sketch of the distinct row indices."""
        self._add_pending()
        return make_sketch(self._smallest_hashes)

    def add(self, indices: Sequence[int]) -> None:
        """Add the next row indices."""
        self._pending_indices += indices
        if len(self._pending_indices) >= _MAX_PENDING_INDICES:
            self._add_pending()

    def digests(self) -> tuple[str, str]:
        """Return two digests of the added row indices, in hexadecimal.

        The first digest depends on the order of the row indices, the second digest does not.
        """
        self._add_pending()
        return f"{self._ordered_digest:016x}", f"{self._unordered_digest:016x}"

    def _add_pending(self) -> None:
        """Add the pending row indices to the fingerprints and to the sketch."""
        hashes = mix64(torch.tensor(self._pending_indices, dtype=torch.int64))
        position_hashes = mix64(torch.arange(self.num_indices, self.num_indices + len(hashes))) | 1
        self._ordered_digest = (
            self._ordered_digest + int((hashes * position_hashes).sum())
        ) % _MODULUS
        self._unordered_digest = (self._unordered_digest + int(hashes.sum())) % _MODULUS
        self._first_indices = [*self.first_indices]
        self._smallest_hashes = _merge_hashes(self._smallest_hashes, hashes)
        self.num_indices += len(hashes)
        self._pending_indices = []


class FieldSketch:
    """Sketch of the values of one floating-point tensor over batches."""

    def __init__(self) -> None:
        self._smallest_hashes = torch.zeros(0, dtype=torch.int64)
        self._column_hashes: list[Tensor] = []
        """Hashes of the values in a few columns of each batch, (rows, columns)."""

    def add(self, tensor: Tensor) -> None:
        """Add the first rows of the next batch."""
        rows = tensor.detach().reshape(tensor.shape[0], -1)
        num_rows = max(_MAX_SKETCHED_ELEMENTS // rows.shape[1], 1)
        rows = rows[:num_rows, :_MAX_SKETCHED_ELEMENTS].cpu().contiguous()
        hashes = mix64(rows.view(_INTEGER_DTYPES[rows.element_size()]))
        self._column_hashes.append(hashes[:, :: -(-hashes.shape[1] // _MAX_REPEAT_COLUMNS)])
        if len(self._smallest_hashes) > _SKETCH_SIZE:
            hashes = hashes[hashes < self._smallest_hashes[-1]]
        self._smallest_hashes = _merge_hashes(self._smallest_hashes, hashes.flatten())

    def record(self, position: int) -> FloatFieldRecord:
        """Return the record of the values so far.

        Args:
            position: Position of the tensor among the tensors of a batch, from 0.
        """
        repeated_fraction = 1.0  # not continuous if batches differ in their number of columns
        if len({hashes.shape[1] for hashes in self._column_hashes}) == 1:
            columns = torch.cat(self._column_hashes).T.contiguous().sort().values
            repeated_fraction = float(
                (columns[:, 1:] == columns[:, :-1]).double().sum() / columns.numel()
            )
        return FloatFieldRecord(
            place=position,
            values=make_sketch(self._smallest_hashes),
            is_continuous=repeated_fraction <= _MAX_REPEATED_FRACTION,
        )


def random_state_fingerprints() -> tuple[int, int, int]:
    """Return fingerprints of the global random states of torch, Python and NumPy."""
    state = torch.get_rng_state()
    numpy = sys.modules.get("numpy")
    numpy_state = 0
    if numpy is not None:
        generator_name, keys, *rest = numpy.random.get_state()
        numpy_state = zlib.crc32(repr((generator_name, rest)).encode(), zlib.crc32(keys.tobytes()))
    return (
        int(row_fingerprints(state[None], sample_size=state.numel())[0]),
        # Not ``hash``: before Python 3.12, the hash of None differs between processes.
        zlib.crc32(repr(random.getstate()).encode()),
        numpy_state,
    )


def state_fingerprint(state: Any) -> int:
    """Return a fingerprint of the values of a state dict, in their order; keys do not count.

    Tensors that ``plain_tensor`` cannot convert do not count either. Return 0 for other objects,
    and for a state dict without float tensors, with float tensors on the meta device, or with more
    than 1,024 float tensors.

    Cost:
        Copies up to 16 elements of each float tensor from its device.
    """
    if not isinstance(state, Mapping):
        return 0
    float_tensors = [v for v in state.values() if isinstance(v, Tensor) and v.is_floating_point()]
    # A network may have meta tensors before its weights are read from a file.
    if len(float_tensors) > _MAX_STATE_TENSORS or any(t.is_meta for t in float_tensors):
        return 0
    tensors = [t for t in map(plain_tensor, float_tensors) if t is not None]
    if not tensors:
        return 0
    samples = [t.detach().reshape(-1)[:_NUM_STATE_ELEMENTS].float().cpu() for t in tensors]
    return zlib.crc32(torch.cat(samples).numpy().tobytes()) or 1


def plain_tensor(tensor: Tensor) -> Tensor | None:
    """Return a tensor as a plain ``Tensor``, without its subclass.

    Return None if the subclass may store values in another way than a plain tensor, as distributed
    tensors do. Also return None for a sparse, nested, quantized or meta tensor. Its values cannot
    be read like the values of a dense tensor: reading a quantized tensor as integers, for example,
    crashes the process.
    """
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return None
    cls = type(tensor)
    if cls is Tensor or cls is torch.nn.Parameter:
        return tensor
    has_values = "__torch_dispatch__" not in {
        name for base in cls.__mro__ if base is not Tensor for name in vars(base)
    }
    return tensor.as_subclass(Tensor) if has_values else None


def batch_tensors(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch: the batch itself, or the first 8 of a list, tuple or dict.

    Tensors that ``plain_tensor`` cannot convert are omitted.
    """
    if isinstance(batch, Tensor):
        batch = [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        return []
    tensors = [plain_tensor(item) for item in batch if isinstance(item, Tensor)][:_MAX_FIELDS]
    return [tensor for tensor in tensors if tensor is not None]


def batch_fingerprint(batch: Any) -> int:
    """Return a fingerprint of the first 8 tensors of a batch, from at most 256 elements per row.

    Return 0 if the batch has no non-empty tensors that ``batch_tensors`` returns.
    """
    tensors = [t for t in batch_tensors(batch) if t.dim() and t.numel()]
    if not tensors:
        return 0
    rows = torch.cat([row_fingerprints(t, sample_size=256) for t in tensors])
    return zlib.crc32(rows.cpu().numpy().tobytes()) or 1


def field_record(tensor: Tensor) -> FieldRecord:
    """Return the record of one tensor of a batch, with NaN values if it is empty or complex."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not tensor.numel() or tensor.is_complex():
        nan = float("nan")
        return FieldRecord(
            shape=shape, dtype=dtype, smallest=nan, largest=nan, mean=nan, num_non_finite=0
        )
    values = tensor.detach()
    if values.is_floating_point():
        if values.element_size() == 1:  # torch computes no extremes of 8-bit floats
            values = values.float()
        minimum, maximum = torch.aminmax(values)
        mean = values.mean(dtype=torch.float64)
        # Non-finite values are counted only if the mean is non-finite, because counting takes
        # another pass over the values.
        num_non_finite = torch.tensor(0) if bool(mean.isfinite()) else (~values.isfinite()).sum()
    else:
        minimum, maximum = torch.aminmax(values.to(torch.int64))
        mean, num_non_finite = values.double().mean(), torch.tensor(0)
    return FieldRecord(
        shape=shape,
        dtype=dtype,
        smallest=float(minimum),
        largest=float(maximum),
        mean=float(mean),
        num_non_finite=int(num_non_finite),
    )
