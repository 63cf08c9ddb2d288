"""Compares two nested dictionaries, and returns path and values of each difference."""

from collections.abc import Iterator
from typing import Any


def format_differences(old_tree: Any, new_tree: Any) -> list[str]:
    """Return 'path was X, now Y' for every differing value, sorted by path.

    >>> format_differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c was 2, now 3']
    """
    return [
        f"{path} was {old!r}, now {new!r}"
        for path, old, new in iter_differences(old_tree, new_tree)
    ]


def iter_differences(first: Any, second: Any, *, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values of every difference, sorted by path.

    Dictionaries are compared recursively by key; a missing key counts as None. ``path`` is the path
    of the two values inside larger dictionaries.

    >>> list(iter_differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted(first.keys() | second.keys()):
            inner_path = f"{path}.{name}".lstrip(".")
            yield from iter_differences(first.get(name), second.get(name), path=inner_path)
    elif first != second:
        yield path, first, second
