"""Numbers that are still on the device: many are read with one wait."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Fill = Callable[[Sequence[float]], None]


class Deferred:
    """Scalars that were asked for, and who wants to know."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._waiting: list[tuple[int, int, Fill]] = []
        self._lock = threading.Lock()

    def ask(self, scalars: Sequence[Tensor], fill: Fill) -> None:
        """Call ``fill`` with the values of some scalars, of no dimension, when they are read."""
        with self._lock:
            self._waiting.append((len(self._tensors), len(scalars), fill))
            self._tensors += scalars

    def read(self) -> None:
        """Read everything that was asked for."""
        with self._lock:
            tensors, waiting = self._tensors, self._waiting
            self._tensors, self._waiting = [], []
        values: list[float] = [0.0] * len(tensors)
        places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, tensor in enumerate(tensors):
            places.setdefault((tensor.device, tensor.dtype), []).append(place)
        with torch.no_grad():
            stacks = [torch.stack([tensors[i] for i in there]) for there in places.values()]
            for there, stacked in zip(places.values(), stacks, strict=True):
                for place, value in zip(there, stacked.tolist(), strict=True):
                    values[place] = float(value)
        for start, length, fill in waiting:
            fill(values[start : start + length])
