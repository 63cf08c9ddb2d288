"""Detects random generators that several operations share."""

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
    """One random stream that several operations use, or that several generators repeat."""

    users: tuple[str, ...]
    why: str


class OperationDraws(Record):
    """Generators whose state one operation changed."""

    operation: str
    moved: tuple[str, ...] = Field(
        description="Names of the changed generators; global ones are "
        "named as in the audit's sources."
    )


def shared_generators(generators: Mapping[str, Generator]) -> tuple[SharedGenerator, ...]:
    """Return which ``generators`` are the same object, or have the same state.

    If two operations share one object, the numbers of one depend on how often the other samples. If
    two generators have the same state, both produce the same numbers, as two unseeded
    ``torch.Generator()`` do.

    Args:
        generators: Generators by the name of the operation that uses them.
    """
    found = []
    for left, right in itertools.combinations(generators, 2):
        one, other = generators[left], generators[right]
        if _identity(one) == _identity(other):
            found.append(SharedGenerator(users=(left, right), why="they use the same object"))
        elif type(one) is type(other) and _fingerprint(one) == _fingerprint(other):
            found.append(SharedGenerator(users=(left, right), why="both produce the same numbers"))
    return tuple(found)


def generator_use(
    operations: Mapping[str, Callable[[], Any]], generators: Mapping[str, Generator]
) -> tuple[tuple[OperationDraws, ...], tuple[SharedGenerator, ...]]:
    """Run the operations in order; return which generators each changed, and which several changed.

    An operation that restores a generator, as ``Stream.active`` does, has not changed it.

    Args:
        operations: Operations by name.
        generators: Generator objects by name; the global generators are always watched.

    Returns:
        One entry per operation, and one per generator that several operations changed.
    """
    draws = []
    for name, operation in operations.items():
        before = _all_fingerprints(generators)
        operation()
        after = _all_fingerprints(generators)
        # The generator of an accelerator that the operation initialised is new, not changed.
        moved = tuple(key for key in after if before.get(key, after[key]) != after[key])
        draws.append(OperationDraws(operation=name, moved=moved))
    shared = []
    for key in dict.fromkeys(key for draw in draws for key in draw.moved):
        users = tuple(draw.operation for draw in draws if key in draw.moved)
        if len(users) > 1:
            shared.append(SharedGenerator(users=users, why=f"all use '{key}'"))
    return tuple(draws), tuple(shared)


def _identity(generator: Generator) -> int:
    # Two NumPy generators over one bit generator are one stream.
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
    parts: dict[str, bytes] = {}
    for key, tensor in state.items():
        source, _, index = key.partition("_")
        name = f"torch cuda:{index}" if source == "cuda" else names[source]
        parts[name] = parts.get(name, b"") + bytes(tensor.numpy().tobytes())
    found = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    return found | {
        f"generator of {n}": _fingerprint(generator) for n, generator in generators.items()
    }
