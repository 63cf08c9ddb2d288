"""Lists every source of randomness of a process, and whether it was seeded."""

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
"""Initial seed of every ``torch.Generator()``; the global generators choose theirs at random."""

_SYSTEM_ENTROPY = 2**64
"""NumPy uses 128 bits of entropy without a seed; derived seeds have 63."""

_MT_WORDS = 624
_MAX_REFILLS = 1000
"""Refills of 624 words that are replayed to recognise a Mersenne Twister: 624,000 numbers."""


class RandomSource(Record):
    """One source of randomness."""

    name: str
    status: Status = Field(
        description="'seeded': with the expected seed, or, for a generator object, with any seed; "
        "'other seed': with a different seed; 'not seeded': different numbers in "
        "every process, or the library's default seed; 'unknown': the seed cannot be "
        "determined; 'not started': an unused accelerator."
    )
    detail: str = Field(description="The recognised seed, or why none was recognised.")


class DeterminismSwitch(Record):
    """One option that determines whether equal random numbers give equal results."""

    name: str
    value: str
    repeats: bool = Field(description="Whether a repeated run gives the same bits with this value.")


class RandomnessAudit(Record):
    """Result of the audit."""

    sources: tuple[RandomSource, ...]
    switches: tuple[DeterminismSwitch, ...]
    shared: tuple[SharedGenerator, ...]

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Names of the sources that are not known to have the expected seed."""
        return tuple(s.name for s in self.sources if s.status not in ("seeded", "not started"))


def audit_randomness(
    *,
    seed: int,
    generators: Mapping[str, Generator],
    loaders: Mapping[str, DataLoader[Any]],
    start_environment: Mapping[str, str] | None = None,
) -> RandomnessAudit:
    """List every source of randomness of this process and whether it was seeded.

    No random number is generated and nothing is changed. The global generators of Python and NumPy
    do not store their seed, so their state is compared with the state after
    ``seed_everything(seed)`` and up to 624,000 numbers.

    Args:
        seed: Expected seed of the global generators.
        generators: Generators that are passed to operations, by the name of the operation. They
            have their own seeds, so any seed except a library's default counts as seeded.
        loaders: The DataLoaders, by name.
        start_environment: Environment at the start of the process; read from the process if None.
            Later changes do not affect the hashes of this process.

    Cost:
        50 ms if a generator is not recognised.
    """
    sources = [
        _python(seed),
        _numpy(seed),
        *_torch(seed),
        _hash_seed(start_environment),
        *(_generator(f"generator of {name}", generator) for name, generator in generators.items()),
        *(_loader(f"loader {name}", loader) for name, loader in loaders.items()),
    ]
    by_name = {f"generator of {name}": generator for name, generator in generators.items()}
    for name, loader in loaders.items():
        if loader.generator is not None:
            by_name[f"loader {name}"] = loader.generator
    return RandomnessAudit(
        sources=tuple(sources), switches=tuple(_switches()), shared=shared_generators(by_name)
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
    for refill in itertools.islice(refills, _MAX_REFILLS + 1):
        if np.array_equal(words, refill):
            return RandomSource(name=name, status="seeded", detail=f"seed {seed}")
    return RandomSource(
        name=name,
        status="unknown",
        detail=f"not in the state after seed {seed} and up to {_MAX_REFILLS * _MT_WORDS:,} "
        "numbers: never seeded, or seeded with another seed",
    )


def _torch(seed: int) -> Iterator[RandomSource]:
    yield _of_torch("torch CPU", torch.initial_seed(), wanted=seed)
    for device in range(torch.cuda.device_count()):
        name = f"torch cuda:{device}"
        if torch.cuda.is_initialized():
            own = torch.cuda.default_generators[device].initial_seed()
            yield _of_torch(name, own, wanted=seed)
        else:
            yield RandomSource(
                name=name, status="not started", detail="seeded when it is initialised"
            )


def _of_torch(name: str, seed: int, *, wanted: int) -> RandomSource:
    if seed == wanted:
        return RandomSource(name=name, status="seeded", detail=f"seed {seed}")
    detail = f"seed {seed}: chosen by torch at the start of the process, or set by another call"
    return RandomSource(name=name, status="other seed", detail=detail)


def _torch_generator(name: str, generator: torch.Generator) -> RandomSource:
    if generator.initial_seed() == _UNSEEDED_TORCH:
        return RandomSource(name=name, status="not seeded", detail="torch's default seed")
    return RandomSource(name=name, status="seeded", detail=f"seed {generator.initial_seed()}")


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
        detail="unset at the start of the process: sets of strings iterate in a different order "
        "each time",
    )


def _generator(name: str, generator: Generator) -> RandomSource:
    if isinstance(generator, torch.Generator):
        return _torch_generator(name, generator)
    seed_seq = getattr(getattr(generator, "bit_generator", None), "seed_seq", None)
    entropy = getattr(seed_seq, "entropy", None)
    if entropy is None:
        detail = "a generator of this kind does not store its seed"
        return RandomSource(name=name, status="unknown", detail=detail)
    if isinstance(entropy, int) and entropy >= _SYSTEM_ENTROPY:
        return RandomSource(
            name=name, status="not seeded", detail="entropy of the operating system"
        )
    return RandomSource(name=name, status="seeded", detail=f"entropy {entropy}")


def _loader(name: str, loader: DataLoader[Any]) -> RandomSource:
    if loader.generator is None:
        return RandomSource(
            name=name,
            status="not seeded",
            detail="no generator: the loader uses torch's global one at every pass",
        )
    return _torch_generator(name, loader.generator)


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
        # Same bits on the same device, different bits on an older device.
        "float32 matmul precision": (torch.get_float32_matmul_precision(), True),
        "cudnn TF32": (torch.backends.cudnn.allow_tf32, True),
        "CUBLAS_WORKSPACE_CONFIG": (
            os.environ.get("CUBLAS_WORKSPACE_CONFIG", "unset"),
            not torch.cuda.is_available()
            or os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (":4096:8", ":16:8"),
        ),
        # Sums over several threads depend on the number of threads.
        "threads": (torch.get_num_threads(), torch.get_num_threads() == 1),
    }
    for name, (value, repeats) in values.items():
        yield DeterminismSwitch(name=name, value=str(value), repeats=repeats)
