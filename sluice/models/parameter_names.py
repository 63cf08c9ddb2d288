"""Formats parameter names for messages."""

from collections.abc import Collection

_SHOWN = 8


def format_names(names: Collection[str]) -> str:
    """Return the first eight names, separated by commas, and the number of further ones.

    >>> format_names(["a", "b"])
    'a, b'
    """
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
