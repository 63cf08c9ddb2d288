"""Random generators that an object holds, found without calling anything of the program's."""

import functools
import random
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

_DEEPEST = 4
_MOST_VISITED = 256
_MOST_FOUND = 8
_LONGEST = 32
"""Of a container whose items are looked at."""

_LIBRARIES = frozenset({"builtins", "numpy", "torch", "typing"})
"""Their methods are not read: what they draw from is held by an object, or is the process's."""


@dataclass(frozen=True, slots=True)
class Source:
    """One generator, and where it is held."""

    path: str
    generator: Any

    def state(self) -> int:
        """Return a fingerprint of its state, which stays as it is."""
        held = self.generator
        if isinstance(held, torch.Generator):
            return zlib.crc32(held.get_state().numpy().tobytes())
        if isinstance(held, random.Random):
            return zlib.crc32(repr(held.getstate()).encode())
        told = held.get_state() if hasattr(held, "get_state") else held.bit_generator.state
        if isinstance(told, tuple):  # the older kind: name, keys, position, and the rest
            return zlib.crc32(repr(told[2:]).encode(), zlib.crc32(told[1].tobytes()))
        return zlib.crc32(repr(told).encode())

    def stream(self) -> int | None:
        """Return what stays the same while numbers are only drawn; None when it cannot be told."""
        held = self.generator
        if isinstance(held, torch.Generator):
            return int(held.initial_seed())
        if hasattr(held, "bit_generator"):
            state = held.bit_generator.state
            inner = state.get("state") if isinstance(state, dict) else None
            if isinstance(inner, dict) and "inc" in inner:
                return int(inner["inc"])
        return None

    def stream_state(self) -> int:
        """Return a fingerprint of its stream, for one that was made just now; 0 if unknown."""
        stream = self.stream()
        return 0 if stream is None else zlib.crc32(repr(stream).encode())

    def was_reseeded(self, before: int | None) -> Literal["no", "yes", "unknown"]:
        """Tell whether it was seeded anew since its stream was asked for."""
        now = self.stream()
        if now is None or before is None:
            return "unknown"
        return "no" if now == before else "yes"


def process_sources() -> list[Source]:
    """Return the generators of the process itself: torch's, Python's, numpy's."""
    found = [Source("torch", torch.default_generator)]
    python = getattr(random, "_inst", None)
    numpy = sys.modules.get("numpy")
    theirs = None if numpy is None else getattr(numpy.random.mtrand, "_rand", None)
    found += [Source("random", python)] * (python is not None)
    return found + [Source("numpy.random", theirs)] * (theirs is not None)


def find_sources(roots: Mapping[str, Any]) -> list[Source]:
    """Return the generators that some objects hold, also in containers and closures.

    Those of the process itself are none of them.

    Args:
        roots: Name to object, such as a dataset.

    Cost:
        Well under a millisecond: at most 256 objects are looked at.
    """
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    numpy = sys.modules.get("numpy")
    own = {id(torch.default_generator), id(getattr(random, "_inst", None))}
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
        own.add(id(getattr(numpy.random.mtrand, "_rand", None)))
    found: list[Source] = []
    waiting = [(name, it, 0) for name, it in roots.items()]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_VISITED and len(found) < _MOST_FOUND:
        path, it, depth = waiting.pop(0)
        if id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(it, kinds):
            found += [Source(path, it)] * (id(it) not in own)
        elif depth < _DEEPEST:
            waiting += [(f"{path}{name}", held, depth + 1) for name, held in _held(it)]
    return found


def _held(it: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(it, torch.Tensor | str | bytes | int | float | type | types.ModuleType | None):
        return
    if isinstance(it, list | tuple | dict):
        pairs = it.items() if isinstance(it, dict) else enumerate(it)
        if len(it) <= _LONGEST:
            yield from ((f"[{key!r}]", held) for key, held in pairs)
    elif isinstance(it, functools.partial):
        yield from ((f".{name}", getattr(it, name)) for name in ("func", "args", "keywords"))
    elif isinstance(it, types.MethodType):
        yield ".__self__", it.__self__
    elif isinstance(it, types.FunctionType):
        yield from _held_by(it)
    else:
        attributes = getattr(it, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", held) for name, held in list(attributes.items())[:_LONGEST])
        yield from _methods(type(it))


def _methods(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the methods of a class, those of the program's own code: one may call another."""
    for cls in kind.__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name, method in list(vars(cls).items())[:_LONGEST]:
            if isinstance(method, staticmethod | classmethod):
                method = method.__func__
            if isinstance(method, types.FunctionType):
                yield f".{name}", method


def _held_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function closes over, and the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in list(_names(function.__code__))[:_LONGEST]:
        if name in function.__globals__:
            yield f".{name}", function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code uses, with what stands inside, such as a comprehension."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)
