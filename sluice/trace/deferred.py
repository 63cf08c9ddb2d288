"""Numbers that may still be on the device: many are read with one wait."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Fill = Callable[[Sequence[float]], None]


class Deferred:
    """Scalars that were asked for, and who wants to know."""

    def __init__(self) -> None:
        self._asked: list[Tensor | float] = []
        self._waiting: list[tuple[int, int, Fill]] = []
        self._lock = threading.Lock()

    def ask(self, scalars: Sequence[Tensor | float], fill: Fill) -> None:
        """Call ``fill`` with the values of some scalars when they are read.

        Args:
            scalars: Tensors of no dimension, and numbers that are known already.
            fill: Takes as many values.
        """
        with self._lock:
            self._waiting.append((len(self._asked), len(scalars), fill))
            self._asked += scalars

    def read(self) -> None:
        """Read everything that was asked for."""
        with self._lock:
            asked, waiting = self._asked, self._waiting
            self._asked, self._waiting = [], []
        values: list[float] = [0.0] * len(asked)
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[Tensor]]] = {}
        for place, it in enumerate(asked):
            if isinstance(it, Tensor):
                places, tensors = groups.setdefault((it.device, it.dtype), ([], []))
                places.append(place)
                tensors.append(it)
            else:
                values[place] = it
        with torch.no_grad():
            stacks = [(places, torch.stack(tensors)) for places, tensors in groups.values()]
        for places, stacked in stacks:
            for place, value in zip(places, stacked.tolist(), strict=True):
                values[place] = float(value)
        for start, length, fill in waiting:
            fill(values[start : start + length])
