"""What attributes of a program's own say: names that torch never reads, and settings of a tie."""

import difflib
import functools
import inspect
from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any

from torch import Tensor, nn

_MEANT = "requires_grad"
_LIKE = 0.85
"""Of a ratio of equal letters; 'require_grad' and 'requires_gard' are beyond it."""

_HOLDERS = frozenset(
    ("config", "cfg", "conf", "args", "hparams", "opt", "opts", "options", "params", "settings")
)
_TIES = frozenset(("tie", "ties", "tied", "tying"))
_SHARES = frozenset(("share", "shares", "shared", "sharing"))
_EMBEDDINGS = frozenset(("embedding", "embeddings", "embed", "embeds", "emb", "word", "words"))
_OTHERS = frozenset(("weight", "weights", "output", "out", "head", "lm", "softmax", "vocab"))
_FILLS = frozenset(("is", "use", "do"))
_NOT = frozenset(("no", "not", "without"))


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


def ties_said(module: nn.Module) -> Iterator[tuple[str, bool]]:
    """Yield what a module, or the settings it holds, say of a tie of output and embedding."""
    for name, value in vars(module).items():
        if isinstance(value, bool) and says_tie(name):
            yield name, value
        elif name in _HOLDERS:
            for inner, said in _stored(value):
                if isinstance(said, bool):
                    yield f"{name}.{inner}", said


def _stored(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield settings that say a tie as they are stored: a property would run a program's code."""
    if isinstance(holder, dict):
        yield from ((n, value) for n, value in holder.items() if isinstance(n, str) and says_tie(n))
        return
    for name in filter(says_tie, (type if isinstance(holder, type) else object).__dir__(holder)):
        value = inspect.getattr_static(holder, name, None)
        slot = isinstance(value, MemberDescriptorType)
        yield name, getattr(holder, name, None) if slot else value


@functools.lru_cache(maxsize=1024)
def says_tie(name: str) -> bool:
    """Tell whether a name says that an output weight is the embedding's own.

    Weights alone are shared by layers, too, and those of two networks.
    """
    words = frozenset(name.strip("_").lower().split("_")) - _FILLS
    if words & _NOT:
        return False
    if words & _TIES:
        return words <= _TIES or bool(words & (_EMBEDDINGS | _OTHERS))
    return bool(words & _SHARES and words & _EMBEDDINGS)
