"""Windows of rows of a table file, as the input of a network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.rows.npy_file import MappedArray
from sluice.data.rows.positions import check_positions
from sluice.data.rows.table_matrix import table_matrix


class TableRows:
    """Windows of consecutive rows of a table that is larger than the memory.

    The table is converted once to a matrix of float32 numbers in ``cache``, which is
    memory-mapped. A window is a view of the matrix; only the windows of a batch are copied.

    Shape legend: B = chosen windows, L = ``seq_len``, D = columns.

    Args:
        path: Parquet or Arrow file, or a folder written by ``sluice pack``. A ``.npy`` file with
            float32 (rows, D) is used as it is, without a copy in ``cache``.
        columns: Columns in their order; None for all.
        cache: Folder of converted tables. Its files can be deleted while no process uses them.
        seq_len: Length of a window [rows]; None for single rows (B, D) without an axis of time.
        ends: Last row of every window, in the order of the examples; by default every row that
            has a complete window, so that window 0 ends at row ``seq_len - 1``.
        allow_nan: Whether missing and non-finite values are accepted. The values of a ``.npy`` file
            are not checked.

    Raises:
        SourceError: The file is missing or cannot be read.
        ContractError: ``seq_len`` is less than 1, a column is missing or not numeric, a value is
            not finite, there is no complete window, or a window begins before the first row.
        StorageError: The cache cannot be written.
    """

    def __init__(
        self,
        path: Path | str,
        columns: Sequence[str] | None = None,
        *,
        cache: Path | str,
        seq_len: int | None = 1,
        ends: NDArray[np.int64] | None = None,
        allow_nan: bool = False,
    ) -> None:
        path = Path(path)
        if seq_len is not None and seq_len < 1:
            raise ContractError(
                f"'seq_len' must be at least 1, got {seq_len}.",
                fix="Give the length of a window in rows, or None for rows without a time axis.",
            )
        if path.suffix == ".npy" and columns is not None:
            raise ContractError(
                f"{path} has no column names, got columns {list(columns)}.",
                fix="Leave out columns, or name a Parquet file.",
            )
        is_matrix = path.suffix == ".npy"
        matrix_path = (
            path if is_matrix else table_matrix(path, columns, Path(cache), allow_nan=allow_nan)
        )
        self._matrix = MappedArray(matrix_path)
        if len(self._matrix.shape) != 2 or self._matrix.dtype != np.float32:
            raise ContractError(
                f"{path} must contain float32 (rows, columns), got {self._matrix.dtype} "
                f"{self._matrix.shape}.",
                fix="Save array.astype(numpy.float32), with one row per row of the table.",
            )
        self._seq_len = seq_len
        length = seq_len or 1
        self._starts: range | NDArray[np.int64] = range(len(self._matrix) - length + 1)
        if ends is not None:
            self._starts = _window_starts(ends, length, len(self._matrix))
        if not len(self._starts):
            raise ContractError(
                f"The {len(self._matrix)} rows of {path} contain no window of {length} rows.",
                fix="Shorten seq_len, or provide more rows.",
            )

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        positions = check_positions(rows, len(self))
        starts = positions if isinstance(self._starts, range) else self._starts[positions]
        matrix = self._matrix.array
        num_columns = matrix.shape[1]
        if self._seq_len is None:
            return torch.from_numpy(matrix[starts])
        # The rows of a window are adjacent in the file, so each window is one row of this view.
        windows = np.lib.stride_tricks.as_strided(
            matrix,
            shape=(len(matrix) - self._seq_len + 1, self._seq_len * num_columns),
            strides=matrix.strides,
            writeable=False,
        )
        chosen_windows = torch.from_numpy(windows[starts])
        return chosen_windows.view(len(starts), self._seq_len, num_columns)


def _window_starts(ends: NDArray[np.int64], length: int, num_rows: int) -> NDArray[np.int64]:
    end_rows = np.asarray(ends, dtype=np.int64)
    invalid_ends = end_rows[(end_rows < length - 1) | (end_rows >= num_rows)]
    if invalid_ends.size:
        raise ContractError(
            f"A window of {length} rows must end at a row from {length - 1} to {num_rows - 1}, got "
            f"{invalid_ends[0]}.",
            cause="The first rows of a table have no complete window, or the table has fewer rows "
            "than its index.",
            fix=f"Leave out the rows before {length - 1}; write the table and its index together.",
        )
    return end_rows - (length - 1)
