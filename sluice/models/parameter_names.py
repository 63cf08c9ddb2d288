"""Names of parameters as a message shows them."""

from collections.abc import Collection

_SHOWN = 8


def listing(names: Collection[str]) -> str:
    """Return the names with commas between, the first eight and how many more.

    >>> listing(["a", "b"])
    'a, b'
    """
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
