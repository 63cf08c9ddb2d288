"""Arrays in ``.npy`` files: written in parts, and memory-mapped again in every process."""

from pathlib import Path
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sluice.base.errors import SourceError

_HEADER_BYTES = 128
"""Size of the header, which has room for a shape that is known only at the end."""
_open_arrays: WeakValueDictionary[tuple[Any, ...], NDArray[Any]] = WeakValueDictionary()
"""Mapped arrays that this process uses, by path, dtype, inode, size and modification time.

Sources of the same file, such as those of train and test rows, share one mapping. Each further
mapping of a file would count in full in the resident memory of the process.
"""


class NpyWriter:
    """Writes an array whose length is not known in advance, part by part.

    Args:
        file: Empty binary file, open for writing and seekable.
        dtype: Type of the numbers; stored in little-endian byte order.
        row_shape: Shape of one entry; () for an array of one axis.
    """

    def __init__(self, file: BinaryIO, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self._file, self._dtype = file, np.dtype(dtype).newbyteorder("<")
        self._row_shape, self.num_rows = row_shape, 0
        file.write(bytes(_HEADER_BYTES))

    def append(self, part: NDArray[Any]) -> None:
        """Append entries, (n, *row_shape)."""
        self._file.write(np.ascontiguousarray(part, dtype=self._dtype).data)
        self.num_rows += len(part)

    def finish(self) -> None:
        """Write the header; the array is readable afterwards."""
        header = (
            f"{{'descr': '{self._dtype.str}', 'fortran_order': False, "
            f"'shape': {(self.num_rows, *self._row_shape)}, }}"
        )
        start = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        self._file.seek(0)
        self._file.write(start + header.encode().ljust(_HEADER_BYTES - 11) + b"\n")


class MappedArray:
    """Memory-mapped array of a file. An unpickled copy maps the file again when it is first read.

    Pickling it copies the path only. The operating system reads the parts that are used and may
    drop them from memory at any time, so the file may be larger than the memory.

    Args:
        path: ``.npy`` file, or a file of numbers without a header.
        dtype: Type of the numbers of a file without a header; None for a ``.npy`` file.

    Raises:
        SourceError: The file is missing, empty, or not an array.
    """

    def __init__(self, path: Path, *, dtype: DTypeLike | None = None) -> None:
        self.path, self._dtype = path.absolute(), None if dtype is None else np.dtype(dtype)
        self._array: NDArray[Any] | None = _map_file(self.path, self._dtype)
        self.shape, self.dtype = self._array.shape, self._array.dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def array(self) -> NDArray[Any]:
        """The mapped array, read-only.

        Raises:
            SourceError: The file disappeared, or has another shape or dtype than before pickling.
        """
        if self._array is None:
            array = _map_file(self.path, self._dtype)
            if (array.shape, array.dtype) != (self.shape, self.dtype):
                raise SourceError(
                    f"{self.path} must contain {self.dtype} {self.shape}, but contains "
                    f"{array.dtype} {array.shape}.",
                    cause="The file was replaced while a process was using it.",
                    fix="Write new data to a new file, and start again.",
                )
            self._array = array
        return self._array

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}


def _map_file(path: Path, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    try:
        status = path.stat()
        key = path, dtype, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        array = _open_arrays.get(key)
        if array is None:
            array = _open_arrays[key] = _open_array(path, dtype)
    except FileNotFoundError:
        raise SourceError(
            f"There is no file {path}.",
            cause="The file was never written, or was removed while it was in use.",
            fix="Correct the path, or write the file again.",
        ) from None
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            f"{path} cannot be memory-mapped as an array: {error}.",
            cause="The file is empty, incomplete or has another format.",
            fix="Write the file again with numpy.save, or pass the dtype of numbers without a "
            "header.",
        ) from None
    return array


def _open_array(path: Path, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    if dtype is not None:
        # A plain array: slicing a numpy.memmap takes three times as long (measured).
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(array, np.ndarray):
        return np.asarray(array)
    raise SourceError(
        f"{path} must be one array, got {type(array).__name__}.",
        fix="Save the array with numpy.save.",
    )
