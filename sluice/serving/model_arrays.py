"""Decoded inputs of requests as NumPy arrays, which can be queued, batched and sent to a process.

Shape legend: N = elements of a request.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sluice.data.rows.protocol import ModelInput

ModelArrays = NDArray[Any] | dict[str, NDArray[Any]]
"""Input of a network for N elements: one array (N, ...), or several by the names of the parameters
of ``forward()``. Windows are one array of float32."""

_DIGEST_BYTES = 16
"""Default length of the digest of an element [bytes]."""


def count_elements(x: ModelArrays) -> int:
    """Return the number of elements (N)."""
    return len(x) if isinstance(x, np.ndarray) else len(next(iter(x.values())))


def first_element(x: ModelArrays) -> ModelArrays:
    """Return the input of the first element, with N = 1."""
    if isinstance(x, np.ndarray):
        return x[:1]
    return {name: array[:1] for name, array in x.items()}


def split_elements(x: ModelArrays, size: int) -> list[ModelArrays]:
    """Split inputs into consecutive inputs of at most ``size`` elements each, without a copy."""
    starts = range(0, count_elements(x), size)
    if isinstance(x, np.ndarray):
        return [x[start : start + size] for start in starts]
    return [{name: array[start : start + size] for name, array in x.items()} for start in starts]


def can_batch(first: ModelArrays, second: ModelArrays) -> bool:
    """Return whether two inputs can be computed in one batch.

    Texts of different lengths cannot: the shorter text would be padded, which could change its
    prediction.
    """
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray)
            and first.shape[1:] == second.shape[1:]
            and first.dtype == second.dtype
        )
    return (
        isinstance(second, dict)
        and first.keys() == second.keys()
        and all(can_batch(array, second[name]) for name, array in first.items())
    )


def concatenate(inputs: Sequence[ModelArrays]) -> ModelArrays:
    """Return one batch of inputs for which ``can_batch`` is true."""
    first = inputs[0]
    if isinstance(first, np.ndarray):
        return np.concatenate([x for x in inputs if isinstance(x, np.ndarray)])
    array_dicts = [x for x in inputs if isinstance(x, dict)]
    return {name: np.concatenate([arrays[name] for arrays in array_dicts]) for name in first}


def as_input(x: ModelArrays) -> "ModelInput":
    """Return the arrays as tensors, without a copy."""
    import torch  # imported here, so that a process that only unpacks arrays starts without torch

    if isinstance(x, np.ndarray):
        return torch.from_numpy(x)
    return {name: torch.from_numpy(array) for name, array in x.items()}


def as_arrays(x: "ModelInput") -> ModelArrays:
    """Return the tensors as arrays. Tensors on the CPU are not copied."""
    if not isinstance(x, dict):
        array: NDArray[Any] = x.detach().cpu().numpy()
        return array
    return {name: tensor.detach().cpu().numpy() for name, tensor in x.items()}


def element_digests(x: ModelArrays, *, key: bytes = b"", size: int = _DIGEST_BYTES) -> list[bytes]:
    """Return a digest of the bytes of each element.

    Args:
        x: Inputs of N elements.
        key: Secret key, without which the digests cannot be predicted; at most 64 bytes.
        size: Length of a digest [bytes].
    """
    arrays = [x] if isinstance(x, np.ndarray) else [x[name] for name in sorted(x)]
    contiguous_arrays = [np.ascontiguousarray(array) for array in arrays]
    digests = []
    for index in range(count_elements(x)):
        hasher = hashlib.blake2b(digest_size=size, key=key)
        for array in contiguous_arrays:
            hasher.update(array[index].tobytes())
        digests.append(hasher.digest())
    return digests
