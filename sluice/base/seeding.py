"""Seeds and random generator states: the same base seed gives bit-identical results."""

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

RngState = dict[str, Tensor]
"""State of every global random generator, as tensors that a safetensors file can store."""


def derive_seed(base: int, stage: str) -> int:
    """Return the seed of one stage: the first 63 bits of SHA-256 of ``base_stage``.

    Two stages never share a random stream, and adding a stage does not change the others.

    >>> derive_seed(0, "init")
    2568297932293241440
    """
    digest = hashlib.sha256(f"{base}_{stage}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, torch on all devices, and the hash seed of later processes.

    Args:
        seed: Non-negative integer below 2**63. NumPy uses its low 32 bits.
    """
    _seed_generators(seed)
    os.environ["PYTHONHASHSEED"] = str(seed % 2**32)


class RandomStream:
    """An independent stream of the global random generators.

    Code inside ``active`` draws from this stream and does not change the caller's state, so a
    caller that draws random numbers between two epochs does not affect the training.

    Args:
        seed: Seed of the stream.
        state: State to continue from instead of the seed, as returned by ``rng_state``.
    """

    def __init__(self, seed: int, state: Mapping[str, Tensor] | None = None) -> None:
        if state is None:
            outer = rng_state()
            _seed_generators(seed)
            state = rng_state()
            restore_rng(outer)
        self.state = state

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make the global generators use this stream inside the block."""
        outer = rng_state()
        restore_rng(self.state)
        try:
            yield
        finally:
            self.state = rng_state()
            restore_rng(outer)


def rng_state() -> RngState:
    """Return the state of every global generator: Python, NumPy, torch on all devices."""
    _, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    state = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": _optional(gauss),
        "numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        "numpy_position": torch.tensor(numpy_state["state"]["pos"], dtype=torch.int64),
        "numpy_gauss": _optional(numpy_state["gauss"] if numpy_state["has_gauss"] else None),
        "torch": torch.get_rng_state(),
    }
    # Reading the state of an unused device would initialize it, which takes seconds and memory.
    if torch.cuda.is_initialized():
        for device, device_state in enumerate(torch.cuda.get_rng_state_all()):
            state[f"cuda_{device}"] = device_state
    return state


def restore_rng(state: Mapping[str, Tensor]) -> None:
    """Restore every global generator to ``state``, as returned by ``rng_state``."""
    gauss = float(state["python_gauss"])
    random.setstate((3, tuple(state["python"].tolist()), None if np.isnan(gauss) else gauss))
    numpy_gauss = float(state["numpy_gauss"])
    has_gauss = not np.isnan(numpy_gauss)
    np.random.set_state(  # noqa: NPY002
        (
            "MT19937",
            state["numpy"].numpy().astype(np.uint32),
            int(state["numpy_position"]),
            int(has_gauss),
            numpy_gauss if has_gauss else 0.0,
        )
    )
    torch.set_rng_state(state["torch"])
    for device in range(torch.cuda.device_count()):
        if f"cuda_{device}" in state:
            torch.cuda.set_rng_state(state[f"cuda_{device}"], device)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Use deterministic operations and one thread inside the block; restore both afterwards.

    One thread, because the result of a multi-threaded sum depends on the number of threads, and
    because other fold runs use the remaining cores.

    Raises:
        RuntimeError: From torch, inside the block: an operation has no deterministic version.
    """
    before = torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    threads = torch.get_num_threads()
    # Not use_deterministic_algorithms: it imports the whole compiler to set one option, which
    # takes over a second in every training process.
    torch.set_deterministic_debug_mode("error")
    # Filling uninitialized memory guards against reading it; it costs time and does not change
    # correct results.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.set_num_threads(threads)


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a model may draw from the global generator
    torch.manual_seed(seed)


def _optional(value: float | None) -> Tensor:
    return torch.tensor(float("nan") if value is None else value, dtype=torch.float64)
