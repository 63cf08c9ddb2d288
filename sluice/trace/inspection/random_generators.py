"""Finds the random generators that an object holds, without calling code of the program."""

import functools
import random
import sys
import types
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

_MAX_DEPTH = 4
"""Maximum length of a chain of references from a searched object to a generator."""
_MAX_VISITED = 256
"""Maximum number of objects that a search visits."""
_MAX_GENERATORS = 8
"""Number of generators after which a search ends."""
_MAX_ITEMS = 32
"""Maximum number of items, attributes or globals of one object that are searched. A larger
container is not searched at all. If there are more attributes or globals, only the first 32 are
searched."""

_LIBRARIES = frozenset({"builtins", "numpy", "torch", "typing"})
"""Libraries whose methods are not searched. Such a method draws random numbers only from attributes
of its object, which are searched anyway, or from the global generators."""


@dataclass(frozen=True, slots=True)
class GeneratorSource:
    """A random generator, and the path to it."""

    path: str
    """Path from a searched object to the generator, such as 'dataset.transform.generator'. The path
    of a global generator is its name, such as 'numpy.random'."""
    generator: Any

    def state_fingerprint(self) -> int:
        """Return a fingerprint of the generator state, without changing the state."""
        generator = self.generator
        if isinstance(generator, torch.Generator):
            return zlib.crc32(generator.get_state().numpy().tobytes())
        if isinstance(generator, random.Random):
            return zlib.crc32(repr(generator.getstate()).encode())
        state = (
            generator.get_state()
            if hasattr(generator, "get_state")
            else generator.bit_generator.state
        )
        if isinstance(state, tuple):  # RandomState: name, keys, position, and more
            return zlib.crc32(repr(state[2:]).encode(), zlib.crc32(state[1].tobytes()))
        return zlib.crc32(repr(state).encode())

    def seed_identity(self) -> int | None:
        """Return a number that the seed determines and that drawing does not change.

        Return None if the generator does not provide such a number.
        """
        generator = self.generator
        if isinstance(generator, torch.Generator):
            return int(generator.initial_seed())
        if hasattr(generator, "bit_generator"):
            state = generator.bit_generator.state
            inner_state = state.get("state") if isinstance(state, dict) else None
            if isinstance(inner_state, dict) and "inc" in inner_state:
                return int(inner_state["inc"])
        return None

    def seed_fingerprint(self) -> int:
        """Return a fingerprint of ``seed_identity``; 0 if the identity is unknown."""
        identity = self.seed_identity()
        return 0 if identity is None else zlib.crc32(repr(identity).encode())

    def reseed_status(self, earlier_identity: int | None) -> Literal["no", "yes", "unknown"]:
        """Return whether the generator was reseeded since ``earlier_identity`` was read."""
        identity = self.seed_identity()
        if identity is None or earlier_identity is None:
            return "unknown"
        return "no" if identity == earlier_identity else "yes"


def generator_types() -> tuple[type, ...]:
    """Return the classes of random generators of torch, Python and, if it is imported, NumPy."""
    numpy = sys.modules.get("numpy")
    numpy_types = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *numpy_types)


def global_generators() -> list[GeneratorSource]:
    """Return the global generators of the process: torch, Python and NumPy."""
    numpy = sys.modules.get("numpy")
    generators = {
        "torch": torch.default_generator,
        "random": getattr(random, "_inst", None),
        "numpy.random": None if numpy is None else getattr(numpy.random.mtrand, "_rand", None),
    }
    return [GeneratorSource(path, g) for path, g in generators.items() if g is not None]


def find_generators(roots: Mapping[str, Any]) -> list[GeneratorSource]:
    """Return the generators that objects reference, directly or through other objects.

    Items of containers, attributes, methods, closure variables, and globals that functions use are
    searched. The global generators of the process are not included.

    Args:
        roots: Objects to search, such as a dataset, by name.

    Cost:
        Well under a millisecond: visits at most 256 objects.
    """
    classes = generator_types()
    global_ids = {id(source.generator) for source in global_generators()}
    generators: list[GeneratorSource] = []
    pending_objects = [(name, value, 0) for name, value in roots.items()]
    visited: set[int] = set()
    while pending_objects and len(visited) < _MAX_VISITED and len(generators) < _MAX_GENERATORS:
        path, value, depth = pending_objects.pop(0)
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, classes):
            if id(value) not in global_ids:
                generators.append(GeneratorSource(path, value))
        elif depth < _MAX_DEPTH:
            pending_objects += [
                (f"{path}{name}", inner, depth + 1) for name, inner in _referenced_objects(value)
            ]
    return generators


def _referenced_objects(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that ``value`` references, each with the path from ``value`` to it."""
    if isinstance(value, torch.Tensor | str | bytes | int | float | type | types.ModuleType | None):
        return
    if isinstance(value, list | tuple | dict):
        if len(value) <= _MAX_ITEMS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"[{key!r}]", item) for key, item in items)
    elif isinstance(value, functools.partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _captured_objects(value)
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from (
                (f".{name}", inner) for name, inner in list(attributes.items())[:_MAX_ITEMS]
            )
        yield from _methods(type(value))


def _methods(owner: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the methods of a class that are not defined in a library, by path."""
    for cls in owner.__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES:
            continue
        for name, method in list(vars(cls).items())[:_MAX_ITEMS]:
            if isinstance(method, staticmethod | classmethod):
                method = method.__func__
            if isinstance(method, types.FunctionType):
                yield f".{name}", method


def _captured_objects(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the closure variables of a function, and the globals that it uses, by path."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # the cell is empty
            continue
    for name in list(used_names(function.__code__))[:_MAX_ITEMS]:
        if name in function.__globals__:
            yield f".{name}", function.__globals__[name]


def used_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in code, and in nested code such as lambdas."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from used_names(constant)
