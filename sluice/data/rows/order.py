"""The order of the rows of an epoch: a pure function of the seed and the number of rows.

Up to ``MAX_SHUFFLED_ROWS`` rows the order is a shuffled table in memory. For more rows, a table
would need 8 bytes per row (80 GB for 10^10 rows), so the order is a Feistel permutation: any part
of it is computed from the positions alone, without an index array.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_SHUFFLED_ROWS = 2**24
"""Maximum number of rows whose order is a table (128 MiB). This number affects the order, so it is
not a setting."""

_NUM_ROUNDS = 6
"""Number of rounds of the permutation. Three rounds already make neighbouring positions unrelated;
the other rounds are a safety margin."""

_CHUNK_ROWS = 2**15
"""Number of positions that are computed at once. The intermediate values fit into the processor's
cache."""

_UInt64Array = NDArray[np.uint64]


class RowOrder(Protocol):
    """Order of the rows of one epoch."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def part(self, start: int, stop: int) -> Tensor:
        """Return the rows at the positions ``start`` to ``stop``, int64."""
        ...


class TableOrder:
    """Order that is stored as a table.

    Args:
        rows: The rows in their order, int64 (N,).
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def part(self, start: int, stop: int) -> Tensor:
        """Return the rows at the positions ``start`` to ``stop``."""
        return self._rows[start:stop]


class FeistelOrder:
    """Pseudo-random permutation of ``range(num_rows)`` without an index array.

    A position is written as two digits, left and right, which have ``a`` and ``b`` possible values.
    Both ``a`` and ``b`` are near sqrt(num_rows). Each round adds a hash of one digit to the other
    digit, modulo ``a`` or ``b``. A round is invertible, so all rounds together are a permutation of
    ``range(a * b)``. A result outside of ``range(num_rows)`` is permuted again until it is inside.
    At most a share of 1 / sqrt(num_rows) of all results is outside.

    Args:
        num_rows: Number of rows, from 1 to 2^62.
        seed: Seed of the round keys, from 0 to 2^64 - 1.

    Cost:
        About 30 ns per row on one core; memory for ``2^15`` rows at once.

    Source:
        Black and Rogaway (2002), "Ciphers with Arbitrary Finite Domains", generalized Feistel
        cipher and cycle walking.
    """

    def __init__(self, num_rows: int, *, seed: int) -> None:
        self._num_rows = num_rows
        self._left_size = _ceil_sqrt(num_rows)
        self._right_size = -(-num_rows // self._left_size)
        self._keys = np.random.SeedSequence(seed).generate_state(_NUM_ROUNDS, np.uint64)

    def __len__(self) -> int:
        return self._num_rows

    def part(self, start: int, stop: int) -> Tensor:
        """Return the rows at the positions ``start`` to ``stop``."""
        rows = np.arange(start, min(stop, self._num_rows), dtype=np.uint64)
        for chunk_start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[chunk_start : chunk_start + _CHUNK_ROWS]
            chunk[:] = self._permute(chunk)
            outside_positions = np.flatnonzero(chunk >= self._num_rows)
            while outside_positions.size:
                chunk[outside_positions] = self._permute(chunk[outside_positions])
                outside_positions = outside_positions[chunk[outside_positions] >= self._num_rows]
        return torch.from_numpy(rows.astype(np.int64, copy=False))

    def _permute(self, positions: _UInt64Array) -> _UInt64Array:
        sizes = np.uint64(self._left_size), np.uint64(self._right_size)
        right, left = np.divmod(positions, sizes[0])
        hashed, scratch = np.empty_like(left), np.empty_like(left)
        for round_number, round_key in enumerate(self._keys):
            # Even rounds change the left digit, odd rounds the right digit.
            changed_digit, other_digit = (left, right) if round_number % 2 == 0 else (right, left)
            size = sizes[round_number % 2]
            _hash_below(other_digit, round_key, size, hashed, scratch)
            changed_digit += hashed
            # Modulo ``size``: a difference below 0 wraps to a number near 2^64.
            np.subtract(changed_digit, size, out=scratch)
            np.minimum(changed_digit, scratch, out=changed_digit)
        right *= sizes[0]
        right += left
        return right


def _hash_below(
    digit: _UInt64Array, key: np.uint64, size: np.uint64, out: _UInt64Array, scratch: _UInt64Array
) -> None:
    """Write a hash in ``range(size)`` of every digit to ``out``; ``scratch`` is overwritten.

    Digits and sizes have at most 32 bits. The multiplications wrap modulo 2^64.
    """
    np.bitwise_xor(digit, key, out=out)
    out *= _MULTIPLIER_1
    np.right_shift(out, _SHIFT, out=scratch)
    out ^= scratch
    out *= _MULTIPLIER_2
    out >>= _SHIFT  # the upper 32 bits, which depend on every bit of the digit
    out *= size
    out >>= _SHIFT


_SHIFT = np.uint64(32)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
"""Odd multipliers of the finalizer of SplitMix64 (Steele, Lea, Flood, 2014)."""


def _ceil_sqrt(value: int) -> int:
    root = int(np.sqrt(value))
    while root * root < value:
        root += 1
    while (root - 1) * (root - 1) >= value:
        root -= 1
    return root
