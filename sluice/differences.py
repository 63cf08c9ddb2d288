"""What differs between two sets of plain values, by the path of each."""

from typing import Any


def differences(written: Any, wanted: Any, *, where: str = "") -> list[str]:
    """Return 'path was X, now Y' for every value that differs, in the order of the paths.

    Mappings are compared key by key, at any depth; a key that is missing counts as None.

    >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
    ['a.c was 2, now 3']
    """
    if isinstance(written, dict) and isinstance(wanted, dict):
        return [
            line
            for name in sorted(written.keys() | wanted.keys())
            for line in differences(
                written.get(name), wanted.get(name), where=f"{where}.{name}".lstrip(".")
            )
        ]
    return [] if written == wanted else [f"{where} was {written!r}, now {wanted!r}"]
