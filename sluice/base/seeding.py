"""Seeds the random generators and stores their states, for bit-identical results."""

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


def derive_seed(base: int, purpose: str) -> int:
    """Return the seed for one purpose: the first 63 bits of SHA-256 of 'BASE_PURPOSE'.

    Different purposes have independent random streams, so that an additional purpose does not
    change the random numbers of the others.

    >>> derive_seed(0, "init")
    2568297932293241440
    """
    digest = hashlib.sha256(f"{base}_{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on all devices, and set the hash seed of child processes.

    Args:
        seed: Non-negative integer below 2**63. NumPy uses its low 32 bits.
    """
    _seed_generators(seed)
    os.environ["PYTHONHASHSEED"] = str(seed % 2**32)


class RandomStream:
    """Random stream that is independent of other uses of the global random generators.

    Code inside ``active`` draws random numbers from this stream. After the block, the generators
    have the same state as before. A caller that draws random numbers between two epochs therefore
    does not affect the training.

    Args:
        seed: Seed of the stream.
        state: State to continue from instead of the seed, as returned by ``rng_state``.
    """

    def __init__(self, seed: int, state: Mapping[str, Tensor] | None = None) -> None:
        if state is None:
            outer_state = rng_state()
            _seed_generators(seed)
            state = rng_state()
            restore_rng(outer_state)
        self.state = state

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make the global generators use this stream inside the block."""
        outer_state = rng_state()
        restore_rng(self.state)
        try:
            yield
        finally:
            self.state = rng_state()
            restore_rng(outer_state)


def rng_state() -> RngState:
    """Return the state of every global generator: Python, NumPy, torch on all devices."""
    _, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    state = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": _optional_tensor(gauss),
        "numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        "numpy_position": torch.tensor(numpy_state["state"]["pos"], dtype=torch.int64),
        "numpy_gauss": _optional_tensor(numpy_state["gauss"] if numpy_state["has_gauss"] else None),
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
    """Use deterministic operations, float32 and one thread inside the block.

    A single thread is used, because the result of a multi-threaded sum depends on the number of
    threads. Other fold runs use the remaining cores. By default, cuDNN rounds the
    inputs of convolutions and recurrent layers to TF32, with 10 mantissa bits; a model would then
    predict other values on a GPU than on the CPU. The precision is not changed if the program set
    ``torch.backends.fp32_precision`` or a precision of ``torch.backends.cudnn``.

    Raises:
        RuntimeError: Raised by torch inside the block: an operation has no deterministic version.
    """
    debug_mode_before = torch.get_deterministic_debug_mode()
    fill_before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    num_threads_before = torch.get_num_threads()
    tf32_before = _uses_tf32()
    # Not set by use_deterministic_algorithms, which would import the whole compiler of torch: more
    # than a second in every training process.
    torch.set_deterministic_debug_mode("error")
    # By default, the deterministic mode fills new memory with fixed values, which takes time. The
    # results of a correct program do not change.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    if tf32_before:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if tf32_before:
            torch.backends.cudnn.allow_tf32 = True
        torch.set_deterministic_debug_mode(debug_mode_before)
        torch.utils.deterministic.fill_uninitialized_memory = fill_before  # type: ignore[attr-defined]
        torch.set_num_threads(num_threads_before)


def _uses_tf32() -> bool:
    """Return whether cuDNN uses TF32 although the program set no precision."""
    general_precision = torch.backends.fp32_precision  # type: ignore[attr-defined]
    if (general_precision, torch.backends.cudnn.fp32_precision) != ("none", "none"):
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # raised if the program set different precisions for .conv and .rnn
        return False


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a model may draw from the global generator
    torch.manual_seed(seed)


def _optional_tensor(value: float | None) -> Tensor:
    """Return a scalar tensor that represents None as NaN."""
    return torch.tensor(float("nan") if value is None else value, dtype=torch.float64)
