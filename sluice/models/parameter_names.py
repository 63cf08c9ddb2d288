"""Formats parameter names for messages."""

from collections.abc import Collection

_MAX_LISTED = 8
"""Maximum number of names that a message lists. Further names are only counted."""


def format_names(names: Collection[str]) -> str:
    """Return the first eight names, separated by commas, and the number of further names.

    >>> format_names(["a", "b"])
    'a, b'
    """
    listed = ", ".join(list(names)[:_MAX_LISTED])
    return listed if len(names) <= _MAX_LISTED else f"{listed} and {len(names) - _MAX_LISTED} more"
