"""Who draws from which generator: two operations never share one (TRACE-6)."""

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
"""A generator that a caller holds."""


class SharedGenerator(Record):
    """One stream that several draw from, or that several repeat."""

    users: tuple[str, ...]
    why: str


class OperationDraws(Record):
    """Which generators one operation moved."""

    operation: str
    moved: tuple[str, ...] = Field(description="Global ones are named as in the audit's sources.")


def shared_generators(generators: Mapping[str, Generator]) -> tuple[SharedGenerator, ...]:
    """Return which of ``generators`` are one object, or are at the same point of one stream.

    Two of one object: what the one draws depends on how often the other did. Two at the same
    point: both draw the same numbers, as two unseeded ``torch.Generator()`` do.

    Args:
        generators: By the name of the operation that draws from them.
    """
    found = []
    for left, right in itertools.combinations(generators, 2):
        one, other = generators[left], generators[right]
        if _identity(one) == _identity(other):
            found.append(SharedGenerator(users=(left, right), why="they hold the same object"))
        elif type(one) is type(other) and _fingerprint(one) == _fingerprint(other):
            found.append(SharedGenerator(users=(left, right), why="both draw the same numbers"))
    return tuple(found)


def generator_use(
    operations: Mapping[str, Callable[[], Any]], generators: Mapping[str, Generator]
) -> tuple[tuple[OperationDraws, ...], tuple[SharedGenerator, ...]]:
    """Run the operations in turn; return what each moved, and what more than one moved.

    An operation that puts a generator back, as ``Stream.active`` does, has not moved it.

    Args:
        operations: By name.
        generators: Those that are held by somebody, by name; the global ones are watched anyway.

    Returns:
        One entry per operation, and one per generator that several moved.
    """
    draws = []
    for name, operation in operations.items():
        before = _all_fingerprints(generators)
        operation()
        after = _all_fingerprints(generators)
        # An accelerator that was started inside is new, not moved.
        moved = tuple(key for key in after if before.get(key, after[key]) != after[key])
        draws.append(OperationDraws(operation=name, moved=moved))
    shared = []
    for key in dict.fromkeys(key for draw in draws for key in draw.moved):
        users = tuple(draw.operation for draw in draws if key in draw.moved)
        if len(users) > 1:
            shared.append(SharedGenerator(users=users, why=f"all draw from '{key}'"))
    return tuple(draws), tuple(shared)


def _identity(held: Generator) -> int:
    # Two NumPy generators over one bit generator are one stream.
    return id(held.bit_generator) if isinstance(held, np.random.Generator) else id(held)


def _fingerprint(held: Generator) -> str:
    if isinstance(held, torch.Generator):
        content = bytes(held.get_state().numpy())
    elif isinstance(held, np.random.Generator):
        content = repr(held.bit_generator.state).encode()
    else:
        content = repr(held.getstate()).encode()
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
    return found | {f"generator of {n}": _fingerprint(held) for n, held in generators.items()}
