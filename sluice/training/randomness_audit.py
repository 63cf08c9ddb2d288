"""Every source of randomness of a process, and whether it was seeded (TRACE-6)."""

import itertools
import os
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.utils.data import DataLoader

from sluice.base.seeding import rng_state
from sluice.base.settings import Record
from sluice.training.generator_sharing import Generator, SharedGenerator, shared_generators

Status = Literal["seeded", "other seed", "not seeded", "unknown", "not started"]

_UNSEEDED_TORCH = 67280421310721
"""The seed that every ``torch.Generator()`` begins with; the global ones draw theirs."""

_SYSTEM_ENTROPY = 2**64
"""NumPy draws 128 bits where it is given no seed; derived seeds have 63."""

_MT_WORDS = 624
_LONGEST_LOOK = 1000
"""Refills of 624 words that are replayed to recognise a Mersenne Twister: 624,000 draws."""


class RandomSource(Record):
    """One source of randomness."""

    name: str
    status: Status = Field(
        description="'seeded': as asked for, or, of a generator handed over, with any seed; 'other "
        "seed': with another one; 'not seeded': other draws in every process, or the library's own "
        "default; 'unknown': it does not say; 'not started': an accelerator nobody used."
    )
    detail: str = Field(description="The seed that was recognised, or why none was.")


class DeterminismSwitch(Record):
    """One setting that decides whether equal draws also give equal results."""

    name: str
    value: str
    repeats: bool = Field(description="With this value the same run gives the same bits.")


class RandomnessAudit(Record):
    """What was found."""

    sources: tuple[RandomSource, ...]
    switches: tuple[DeterminismSwitch, ...]
    shared: tuple[SharedGenerator, ...]

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Names of the sources that are not known to be seeded as asked for."""
        return tuple(s.name for s in self.sources if s.status not in ("seeded", "not started"))


def audit_randomness(
    *,
    seed: int,
    generators: Mapping[str, Generator],
    loaders: Mapping[str, DataLoader[Any]],
    start_environment: Mapping[str, str] | None = None,
) -> RandomnessAudit:
    """List every source of randomness of this process and say whether it was seeded.

    Nothing is drawn and nothing is changed. The global generators of Python and NumPy do not say
    what they were seeded with, so they are compared with what ``seed_everything(seed)`` and up to
    624,000 draws make of them.

    Args:
        seed: What the global generators should have been seeded with.
        generators: Those that are handed to operations, by the name of the operation. They have
            seeds of their own, so any seed but a library's default counts as seeded.
        loaders: The DataLoaders, by name.
        start_environment: The environment the process began with; the process is asked when
            absent. What is set later does not reach this process's hashes.

    Cost:
        50 ms where a generator is not recognised.
    """
    sources = [
        _python(seed),
        _numpy(seed),
        *_torch(seed),
        _hash_seed(start_environment),
        *(_held(f"generator of {name}", held) for name, held in generators.items()),
        *(_loader(f"loader {name}", loader) for name, loader in loaders.items()),
    ]
    given = {f"generator of {name}": held for name, held in generators.items()}
    for name, loader in loaders.items():
        if loader.generator is not None:
            given[f"loader {name}"] = loader.generator
    return RandomnessAudit(
        sources=tuple(sources), switches=tuple(_switches()), shared=shared_generators(given)
    )


def _python(seed: int) -> RandomSource:
    fresh = random.Random(seed)
    words = np.array(random.getstate()[1][:_MT_WORDS], np.uint32)

    def refills() -> Iterator[NDArray[np.uint32]]:
        while True:
            yield np.array(fresh.getstate()[1][:_MT_WORDS], np.uint32)
            fresh.getrandbits(32 * _MT_WORDS)

    return _recognised("Python random", words, refills(), seed)


def _numpy(seed: int) -> RandomSource:
    fresh = np.random.RandomState(seed % 2**32)
    words = rng_state()["numpy"].numpy().astype(np.uint32)

    def refills() -> Iterator[NDArray[np.uint32]]:
        while True:
            state: Any = fresh.get_state(legacy=False)
            yield state["state"]["key"]
            fresh.bytes(4 * _MT_WORDS)

    return _recognised("NumPy global", words, refills(), seed % 2**32)


def _recognised(
    name: str,
    words: NDArray[np.uint32],
    refills: Iterator[NDArray[np.uint32]],
    seed: int,
) -> RandomSource:
    for refill in itertools.islice(refills, _LONGEST_LOOK + 1):
        if np.array_equal(words, refill):
            return RandomSource(name=name, status="seeded", detail=f"seed {seed}")
    return RandomSource(
        name=name,
        status="unknown",
        detail=f"not at seed {seed} nor up to {_LONGEST_LOOK * _MT_WORDS:,} draws after it: never "
        "seeded, or seeded with another one",
    )


def _torch(seed: int) -> Iterator[RandomSource]:
    yield _of_torch("torch CPU", torch.initial_seed(), wanted=seed)
    for device in range(torch.cuda.device_count()):
        name = f"torch cuda:{device}"
        if torch.cuda.is_initialized():
            own = torch.cuda.default_generators[device].initial_seed()
            yield _of_torch(name, own, wanted=seed)
        else:
            yield RandomSource(name=name, status="not started", detail="seeded when it is")


def _of_torch(name: str, seed: int, *, wanted: int) -> RandomSource:
    if seed == wanted:
        return RandomSource(name=name, status="seeded", detail=f"seed {seed}")
    detail = f"seed {seed}: torch's own, drawn when the process began, or set by another call"
    return RandomSource(name=name, status="other seed", detail=detail)


def _held_torch(name: str, held: torch.Generator) -> RandomSource:
    if held.initial_seed() == _UNSEEDED_TORCH:
        return RandomSource(name=name, status="not seeded", detail="torch's default seed")
    return RandomSource(name=name, status="seeded", detail=f"seed {held.initial_seed()}")


def _hash_seed(start_environment: Mapping[str, str] | None) -> RandomSource:
    if start_environment is None:
        import psutil

        start_environment = psutil.Process(os.getpid()).environ()
    text = start_environment.get("PYTHONHASHSEED", "")
    if re.fullmatch(r"\d+", text):
        return RandomSource(name="PYTHONHASHSEED", status="seeded", detail=f"seed {text}")
    return RandomSource(
        name="PYTHONHASHSEED",
        status="not seeded",
        detail="unset when the process began: sets of text iterate in another order each time",
    )


def _held(name: str, held: Generator) -> RandomSource:
    if isinstance(held, torch.Generator):
        return _held_torch(name, held)
    seed_seq = getattr(getattr(held, "bit_generator", None), "seed_seq", None)
    entropy = getattr(seed_seq, "entropy", None)
    if entropy is None:
        detail = "a generator of this kind does not say what it was seeded with"
        return RandomSource(name=name, status="unknown", detail=detail)
    if isinstance(entropy, int) and entropy >= _SYSTEM_ENTROPY:
        return RandomSource(name=name, status="not seeded", detail="entropy of the system")
    return RandomSource(name=name, status="seeded", detail=f"entropy {entropy}")


def _loader(name: str, loader: DataLoader[Any]) -> RandomSource:
    if loader.generator is None:
        return RandomSource(
            name=name,
            status="not seeded",
            detail="no generator: it draws from torch's global one at every pass",
        )
    return _held_torch(name, loader.generator)


def _switches() -> Iterator[DeterminismSwitch]:
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    values: dict[str, tuple[object, bool]] = {
        "deterministic algorithms": (
            "warn only" if strict and warns else strict,
            strict and not warns,
        ),
        "cudnn.deterministic": (
            torch.backends.cudnn.deterministic,
            strict or torch.backends.cudnn.deterministic,
        ),
        "cudnn.benchmark": (torch.backends.cudnn.benchmark, not torch.backends.cudnn.benchmark),
        # The same bits on the same device, other bits than on an older one.
        "float32 matmul precision": (torch.get_float32_matmul_precision(), True),
        "cudnn TF32": (torch.backends.cudnn.allow_tf32, True),
        "CUBLAS_WORKSPACE_CONFIG": (
            os.environ.get("CUBLAS_WORKSPACE_CONFIG", "unset"),
            not torch.cuda.is_available()
            or os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (":4096:8", ":16:8"),
        ),
        # Sums over several threads depend on how many there are.
        "threads": (torch.get_num_threads(), torch.get_num_threads() == 1),
    }
    for name, (value, repeats) in values.items():
        yield DeterminismSwitch(name=name, value=str(value), repeats=repeats)
