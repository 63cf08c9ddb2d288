"""Differences between two nested dictionaries, by the path of each value."""

from collections.abc import Iterator
from typing import Any


def format_differences(written: Any, wanted: Any) -> list[str]:
    """Return 'path was X, now Y' for every differing value, sorted by path.

    >>> format_differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c was 2, now 3']
    """
    return [
        f"{path} was {old!r}, now {new!r}" for path, old, new in iter_differences(written, wanted)
    ]


def iter_differences(one: Any, other: Any, *, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of every difference, sorted by path.

    Dictionaries are compared recursively by key; a missing key counts as None.

    >>> list(iter_differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            path = f"{where}.{name}".lstrip(".")
            yield from iter_differences(one.get(name), other.get(name), where=path)
    elif one != other:
        yield where, one, other
