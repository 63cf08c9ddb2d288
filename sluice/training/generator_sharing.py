"""Detects random generators that several operations share, so that they affect each other."""

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field

from sluice.base.seeding import rng_state
from sluice.base.settings import Record

Generator = torch.Generator | np.random.Generator | random.Random
"""A random generator object of torch, NumPy or Python."""


class SharedGenerator(Record):
    """Operations that use the same random numbers: one generator, or equal generators."""

    users: tuple[str, ...] = Field(description="Names of the operations.")
    why: str = Field(description="In which way the operations share random numbers.")


class OperationDraws(Record):
    """Generators whose state one operation changed."""

    operation: str
    moved: tuple[str, ...] = Field(
        description="Names of the changed generators. The names of global generators are those of "
        "``RandomSource.name``."
    )


def find_shared_generators(generators: Mapping[str, Generator]) -> tuple[SharedGenerator, ...]:
    """Return which ``generators`` are the same object, or have the same state.

    If two operations share a generator object, the random numbers of the first depend on how often
    the second samples. Two generators with the same state, for example two unseeded
    ``torch.Generator()``, produce the same random numbers.

    Args:
        generators: Generators by the name of the operation that uses them.
    """
    shared = []
    for users in itertools.combinations(generators, 2):
        first, second = (generators[user] for user in users)
        if _stream_id(first) == _stream_id(second):
            shared.append(SharedGenerator(users=users, why="they use the same object"))
        elif type(first) is type(second) and _fingerprint(first) == _fingerprint(second):
            shared.append(SharedGenerator(users=users, why="both produce the same numbers"))
    return tuple(shared)


def record_generator_use(
    operations: Mapping[str, Callable[[], Any]], generators: Mapping[str, Generator]
) -> tuple[tuple[OperationDraws, ...], tuple[SharedGenerator, ...]]:
    """Run the operations in order and report which random generators each operation changed.

    A generator whose state the operation restores, for example by ``RandomStream.active``, does not
    count as changed.

    Args:
        operations: Operations by name.
        generators: Generator objects to compare, by name; the global generators are always
            compared.

    Returns:
        One entry per operation, and one entry per generator that several operations changed.
    """
    draws = []
    for name, operation in operations.items():
        before = _all_fingerprints(generators)
        operation()
        after = _all_fingerprints(generators)
        # If the operation initialised an accelerator, the generator of the accelerator is new and
        # does not count as changed.
        changed_names = tuple(key for key in after if before.get(key, after[key]) != after[key])
        draws.append(OperationDraws(operation=name, moved=changed_names))
    shared = []
    for generator_name in dict.fromkeys(key for draw in draws for key in draw.moved):
        users = tuple(draw.operation for draw in draws if generator_name in draw.moved)
        if len(users) > 1:
            shared.append(SharedGenerator(users=users, why=f"all use '{generator_name}'"))
    return tuple(draws), tuple(shared)


def _stream_id(generator: Generator) -> int:
    # Two NumPy generators with the same bit generator produce one stream.
    return (
        id(generator.bit_generator) if isinstance(generator, np.random.Generator) else id(generator)
    )


def _fingerprint(generator: Generator) -> str:
    if isinstance(generator, torch.Generator):
        content = bytes(generator.get_state().numpy())
    elif isinstance(generator, np.random.Generator):
        content = repr(generator.bit_generator.state).encode()
    else:
        content = repr(generator.getstate()).encode()
    return hashlib.sha256(content).hexdigest()


def _all_fingerprints(generators: Mapping[str, Generator]) -> dict[str, str]:
    state = rng_state()
    names = {"python": "Python random", "numpy": "NumPy global", "torch": "torch CPU"}
    states: dict[str, bytes] = {}
    for key, tensor in state.items():
        source, _, index = key.partition("_")
        name = f"torch cuda:{index}" if source == "cuda" else names[source]
        states[name] = states.get(name, b"") + bytes(tensor.numpy().tobytes())
    fingerprints = {
        name: hashlib.sha256(state_bytes).hexdigest() for name, state_bytes in states.items()
    }
    return fingerprints | {
        f"generator of {n}": _fingerprint(generator) for n, generator in generators.items()
    }
