"""Lists every source of randomness of a process, and reports whether each was seeded."""

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
from sluice.training.generator_sharing import Generator, SharedGenerator, find_shared_generators

Status = Literal["seeded", "other seed", "not seeded", "unknown", "not started"]

_DEFAULT_TORCH_SEED = 67280421310721
"""Initial seed of every new ``torch.Generator()``. The global generators start with a random
seed."""

_MIN_SYSTEM_ENTROPY = 2**64
"""Smallest entropy with which a NumPy generator counts as not seeded. Without a seed, NumPy takes
128 bits of entropy from the system; seeds derived by Sluice have 63 bits."""

_NUM_MT_WORDS = 624
"""Number of words in the state of a Mersenne Twister. One update of the state yields this number of
random numbers."""

_MAX_STATE_ADVANCES = 1000
"""Maximum number of times that a seeded Mersenne Twister is advanced by 624 numbers. After each
time, its state is compared with the state of a global generator."""


class RandomSource(Record):
    """One source of randomness, and whether it was seeded."""

    name: str
    status: Status = Field(
        description="'seeded': a global generator with the expected seed, or a generator object or "
        "PYTHONHASHSEED with any seed; 'other seed': a source with a different seed; 'not seeded': "
        "a source that gives different numbers in every process, or has the library's default "
        "seed; 'unknown': the seed cannot be determined; 'not started': a source of an accelerator "
        "that was not used."
    )
    detail: str = Field(description="The recognised seed, or why no seed was recognised.")


class DeterminismSwitch(Record):
    """One option that decides whether equal random numbers give equal results."""

    name: str
    value: str
    repeats: bool = Field(description="Whether a repeated run gives the same bits with this value.")


class RandomnessAudit(Record):
    """All sources of randomness, options for determinism, and shared generators of a process."""

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
    do not store their seed. Their state is therefore compared with the states that a generator has
    after ``seed_everything(seed)`` and up to 624,000 numbers.

    Args:
        seed: Expected seed of the global generators.
        generators: Generators that are passed to operations, by the name of the operation. Any
            seed except a library's default counts as seeded.
        loaders: The DataLoaders, by name.
        start_environment: Environment variables at the start of the process; read from the process
            if None. Later changes of PYTHONHASHSEED have no effect on this process.

    Cost:
        50 ms if the state of a global generator is not recognised.
    """
    sources = [
        _audit_python(seed),
        _audit_numpy(seed),
        *_audit_torch(seed),
        _audit_hash_seed(start_environment),
        *(
            _audit_generator(f"generator of {name}", generator)
            for name, generator in generators.items()
        ),
        *(_audit_loader(f"loader {name}", loader) for name, loader in loaders.items()),
    ]
    generators_by_source = {
        f"generator of {name}": generator for name, generator in generators.items()
    }
    for name, loader in loaders.items():
        if loader.generator is not None:
            generators_by_source[f"loader {name}"] = loader.generator
    return RandomnessAudit(
        sources=tuple(sources),
        switches=tuple(_switches()),
        shared=find_shared_generators(generators_by_source),
    )


def _audit_python(seed: int) -> RandomSource:
    expected_generator = random.Random(seed)
    state_words = np.array(random.getstate()[1][:_NUM_MT_WORDS], np.uint32)

    def seeded_states() -> Iterator[NDArray[np.uint32]]:
        while True:
            yield np.array(expected_generator.getstate()[1][:_NUM_MT_WORDS], np.uint32)
            expected_generator.getrandbits(32 * _NUM_MT_WORDS)

    return _compare_states("Python random", state_words, seeded_states(), seed)


def _audit_numpy(seed: int) -> RandomSource:
    expected_generator = np.random.RandomState(seed % 2**32)
    state_words = rng_state()["numpy"].numpy().astype(np.uint32)

    def seeded_states() -> Iterator[NDArray[np.uint32]]:
        while True:
            state: Any = expected_generator.get_state(legacy=False)
            yield state["state"]["key"]
            expected_generator.bytes(4 * _NUM_MT_WORDS)

    return _compare_states("NumPy global", state_words, seeded_states(), seed % 2**32)


def _compare_states(
    name: str,
    state_words: NDArray[np.uint32],
    seeded_states: Iterator[NDArray[np.uint32]],
    seed: int,
) -> RandomSource:
    """Return the source: 'seeded' if its state is among the states after ``seed``, else 'unknown'.

    Args:
        name: Name of the source.
        state_words: Current state of the generator.
        seeded_states: States of a new generator with the seed, at intervals of 624 numbers.
        seed: Expected seed.
    """
    for seeded_state in itertools.islice(seeded_states, _MAX_STATE_ADVANCES + 1):
        if np.array_equal(state_words, seeded_state):
            return RandomSource(name=name, status="seeded", detail=f"seed {seed}")
    max_numbers = _MAX_STATE_ADVANCES * _NUM_MT_WORDS
    return RandomSource(
        name=name,
        status="unknown",
        detail=f"not in the state after seed {seed} and up to {max_numbers:,} numbers: never "
        "seeded, seeded with another seed, or more numbers were generated",
    )


def _audit_torch(seed: int) -> Iterator[RandomSource]:
    yield _global_torch_source("torch CPU", torch.initial_seed(), expected=seed)
    for device in range(torch.cuda.device_count()):
        name = f"torch cuda:{device}"
        if torch.cuda.is_initialized():
            device_seed = torch.cuda.default_generators[device].initial_seed()
            yield _global_torch_source(name, device_seed, expected=seed)
        else:
            yield RandomSource(
                name=name, status="not started", detail="seeded when it is initialised"
            )


def _global_torch_source(name: str, seed: int, *, expected: int) -> RandomSource:
    if seed == expected:
        return RandomSource(name=name, status="seeded", detail=f"seed {seed}")
    detail = f"seed {seed}: chosen by torch at the start of the process, or set by another call"
    return RandomSource(name=name, status="other seed", detail=detail)


def _torch_generator_source(name: str, generator: torch.Generator) -> RandomSource:
    if generator.initial_seed() == _DEFAULT_TORCH_SEED:
        return RandomSource(name=name, status="not seeded", detail="torch's default seed")
    return RandomSource(name=name, status="seeded", detail=f"seed {generator.initial_seed()}")


def _audit_hash_seed(start_environment: Mapping[str, str] | None) -> RandomSource:
    if start_environment is None:
        import psutil

        start_environment = psutil.Process(os.getpid()).environ()
    hash_seed = start_environment.get("PYTHONHASHSEED", "")
    if re.fullmatch(r"\d+", hash_seed):
        return RandomSource(name="PYTHONHASHSEED", status="seeded", detail=f"seed {hash_seed}")
    return RandomSource(
        name="PYTHONHASHSEED",
        status="not seeded",
        detail="unset or 'random' at the start of the process: sets of strings iterate in a "
        "different order each time",
    )


def _audit_generator(name: str, generator: Generator) -> RandomSource:
    if isinstance(generator, torch.Generator):
        return _torch_generator_source(name, generator)
    seed_seq = getattr(getattr(generator, "bit_generator", None), "seed_seq", None)
    entropy = getattr(seed_seq, "entropy", None)
    if entropy is None:
        detail = f"a {type(generator).__name__} does not store its seed"
        return RandomSource(name=name, status="unknown", detail=detail)
    if isinstance(entropy, int) and entropy >= _MIN_SYSTEM_ENTROPY:
        return RandomSource(
            name=name, status="not seeded", detail="entropy of the operating system"
        )
    return RandomSource(name=name, status="seeded", detail=f"entropy {entropy}")


def _audit_loader(name: str, loader: DataLoader[Any]) -> RandomSource:
    if loader.generator is None:
        return RandomSource(
            name=name,
            status="not seeded",
            detail="no generator: the loader uses torch's global generator at every pass",
        )
    return _torch_generator_source(name, loader.generator)


def _switches() -> Iterator[DeterminismSwitch]:
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    is_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    values: dict[str, tuple[object, bool]] = {
        "deterministic algorithms": (
            "warn only" if is_deterministic and is_warn_only else is_deterministic,
            is_deterministic and not is_warn_only,
        ),
        "cudnn.deterministic": (
            torch.backends.cudnn.deterministic,
            is_deterministic or torch.backends.cudnn.deterministic,
        ),
        "cudnn.benchmark": (torch.backends.cudnn.benchmark, not torch.backends.cudnn.benchmark),
        # TF32 gives the same bits on the same device, but other bits on devices without TF32.
        "float32 matmul precision": (torch.get_float32_matmul_precision(), True),
        "cudnn TF32": (torch.backends.cudnn.allow_tf32, True),
        "CUBLAS_WORKSPACE_CONFIG": (
            os.environ.get("CUBLAS_WORKSPACE_CONFIG", "unset"),
            not torch.cuda.is_available()
            or os.environ.get("CUBLAS_WORKSPACE_CONFIG") in (":4096:8", ":16:8"),
        ),
        # The rounding of a sum over several threads depends on the number of threads.
        "threads": (torch.get_num_threads(), torch.get_num_threads() == 1),
    }
    for name, (value, repeats) in values.items():
        yield DeterminismSwitch(name=name, value=str(value), repeats=repeats)
