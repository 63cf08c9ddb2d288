"""Formats parameter names for messages."""

from collections.abc import Collection

_MAX_LISTED_NAMES = 8
"""Maximum number of names that a message lists. Further names are only counted."""


def format_names(names: Collection[str]) -> str:
    """Return the first eight names, separated by commas, and the number of further names.

    >>> format_names(["a", "b"])
    'a, b'
    """
    first_names = ", ".join(list(names)[:_MAX_LISTED_NAMES])
    num_more = len(names) - _MAX_LISTED_NAMES
    return f"{first_names} and {num_more} more" if num_more > 0 else first_names
