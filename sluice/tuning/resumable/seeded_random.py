"""Seeds the global random generators of Tune's schedulers, so that decisions can be repeated."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sluice.base.seeding import derive_seed


class SeededRandom:
    """Seeds the global random generators for each step of a study, by the number of the step.

    Args:
        seed: Seed from which the seeds of all steps are derived.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._num_steps, self._is_in_step = seed, 0, False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Seed the generators inside the context, and restore their previous states afterwards.

        A nested step is part of the outer step and does not seed the generators again.
        """
        if self._is_in_step:
            yield
            return
        self._num_steps, self._is_in_step = self._num_steps + 1, True
        seed = derive_seed(self._seed, f"tune_{self._num_steps}")
        python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that ASHA uses
        try:
            yield
        finally:
            self._is_in_step = False
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002

    def undo_step(self) -> None:
        """Remove the last step from the count, because it changed nothing.

        Inside a step this has no effect.
        """
        if not self._is_in_step:
            self._num_steps -= 1
