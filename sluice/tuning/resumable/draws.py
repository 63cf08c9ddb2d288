"""Random draws of Tune's schedulers, from a seed of our own."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sluice.base.seeding import derive_seed


class SeededDraws:
    """Seeds the global generators, from which schedulers of Tune draw, for one step of a study.

    Args:
        seed: Seed of all steps.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._steps, self._is_open = seed, 0, False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Seed the generators; the program's own states are put back afterwards.

        A step within a step is a part of it.
        """
        if self._is_open:
            yield
            return
        self._steps, self._is_open = self._steps + 1, True
        seed = derive_seed(self._seed, f"tune_{self._steps}")
        own, own_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that ASHA draws from
        try:
            yield
        finally:
            self._is_open = False
            random.setstate(own)
            np.random.set_state(own_numpy)  # noqa: NPY002

    def undo(self) -> None:
        """Forget the last step, which changed nothing, unless it goes on."""
        if not self._is_open:
            self._steps -= 1
