"""Batched reads of scalars from devices: many values are read with few synchronizations."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

OnValues = Callable[[Sequence[float]], None]


class BatchedDeviceReads:
    """Collects requests for scalars, reads all scalars at once, and passes them to callbacks.

    Cost:
        One device synchronization per ``read``, for each device and dtype.
    """

    def __init__(self) -> None:
        self._requested_scalars: list[Tensor | float] = []
        self._callbacks: list[tuple[int, int, OnValues]] = []
        """Position of the first scalar of a request, number of its scalars, and its callback."""
        self._lock = threading.Lock()

    def request(self, scalars: Sequence[Tensor | float], on_values: OnValues) -> None:
        """Request values; ``read`` passes them to the callback.

        Args:
            scalars: Zero-dimensional tensors on any device, or Python numbers.
            on_values: Called with one float per scalar.
        """
        with self._lock:
            self._callbacks.append((len(self._requested_scalars), len(scalars), on_values))
            self._requested_scalars += scalars

    def read(self) -> None:
        """Read all requested values and call the callbacks."""
        with self._lock:
            scalars, callbacks = self._requested_scalars, self._callbacks
            self._requested_scalars, self._callbacks = [], []
        values: list[float] = [0.0] * len(scalars)
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
        for position, scalar in enumerate(scalars):
            if isinstance(scalar, Tensor):
                group = (scalar.device, scalar.dtype)
                positions, tensors = groups.setdefault(group, ([], []))
                positions.append(position)
                tensors.append(scalar)
            else:
                values[position] = scalar
        with torch.no_grad():
            stacks = [(positions, torch.stack(tensors)) for positions, tensors in groups.values()]
        for positions, stacked in stacks:
            for position, value in zip(positions, stacked.tolist(), strict=True):
                values[position] = float(value)
        for start, length, on_values in callbacks:
            on_values(values[start : start + length])
