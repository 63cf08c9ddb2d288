"""Attributes that a program set under a name that torch never reads."""

import difflib
import functools
from typing import Any

from torch import Tensor

_MEANT = "requires_grad"
_LIKE = 0.85
"""Of a ratio of equal letters; 'require_grad' and 'requires_gard' are beyond it."""


def misnamed(owner: Any) -> list[str]:
    """Return attributes of a parameter or module that were meant as a parameter's requires_grad.

    Python takes any name for an attribute of a tensor, and that of a module has no meaning at all.
    """
    return [
        name
        for name, value in vars(owner).items()
        if isinstance(value, bool)
        and _is_like(name)
        and (name != _MEANT or not isinstance(owner, Tensor))
    ]


@functools.lru_cache(maxsize=1024)
def _is_like(name: str) -> bool:
    return difflib.SequenceMatcher(None, name, _MEANT).ratio() >= _LIKE
