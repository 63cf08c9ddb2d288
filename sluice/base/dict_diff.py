"""What differs between two sets of plain values, by the path of each."""

from collections.abc import Iterator
from typing import Any


def differences(written: Any, wanted: Any) -> list[str]:
    """Return 'path was X, now Y' for every value that differs, in the order of the paths.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c was 2, now 3']
    """
    return [f"{path} was {old!r}, now {new!r}" for path, old, new in differing(written, wanted)]


def differing(one: Any, other: Any, *, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values where two differ, in the order of the paths.

    Mappings are compared key by key, at any depth; a key that is missing counts as None.

    >>> list(differing({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            path = f"{where}.{name}".lstrip(".")
            yield from differing(one.get(name), other.get(name), where=path)
    elif one != other:
        yield where, one, other
