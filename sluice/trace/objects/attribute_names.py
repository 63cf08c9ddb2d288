"""Finds attributes that torch ignores: misspelled ``requires_grad``, weight-tying settings."""

import difflib
import functools
import inspect
from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any

from torch import Tensor, nn

_REQUIRES_GRAD = "requires_grad"
_MIN_SIMILARITY = 0.85
"""Minimum similarity (``difflib``) to 'requires_grad' of a misspelled attribute name, such as
'require_grad' or 'requires_gard'."""

_CONFIG_NAMES = frozenset(
    ("config", "cfg", "conf", "args", "hparams", "opt", "opts", "options", "params", "settings")
)
"""Names of attributes in which a module usually stores its settings."""
_TIE_WORDS = frozenset(("tie", "ties", "tied", "tying"))
_SHARE_WORDS = frozenset(("share", "shares", "shared", "sharing"))
_EMBEDDING_WORDS = frozenset(("embedding", "embeddings", "embed", "embeds", "emb", "word", "words"))
_OUTPUT_WORDS = frozenset(("weight", "weights", "output", "out", "head", "lm", "softmax", "vocab"))
_FILLER_WORDS = frozenset(("is", "use", "do"))
_NEGATIONS = frozenset(("no", "not", "without"))


def find_misspelled_requires_grad(owner: Any) -> list[str]:
    """Return the names of boolean attributes that are probably meant to be ``requires_grad``.

    Python accepts misspelled names. On a module, the name ``requires_grad`` itself is returned,
    too, because it has no effect there.
    """
    return [
        name
        for name, value in vars(owner).items()
        if isinstance(value, bool)
        and _resembles_requires_grad(name)
        and (name != _REQUIRES_GRAD or not isinstance(owner, Tensor))
    ]


@functools.lru_cache(maxsize=1024)
def _resembles_requires_grad(name: str) -> bool:
    return difflib.SequenceMatcher(None, name, _REQUIRES_GRAD).ratio() >= _MIN_SIMILARITY


def find_tying_settings(module: nn.Module) -> Iterator[tuple[str, bool]]:
    """Yield name and value of each setting for weight tying (of output and embedding) in a module.

    Settings are attributes of the module, or attributes or keys of its config.
    """
    for name, value in vars(module).items():
        if isinstance(value, bool) and is_tying_name(name):
            yield name, value
        elif name in _CONFIG_NAMES:
            for inner_name, setting in _find_tying_in_config(value):
                if isinstance(setting, bool):
                    yield f"{name}.{inner_name}", setting


def _find_tying_in_config(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tying settings of a config, without running code of the program.

    Properties are not evaluated: the property object is yielded instead of a value.
    """
    if isinstance(config, dict):
        yield from (
            (name, value)
            for name, value in config.items()
            if isinstance(name, str) and is_tying_name(name)
        )
        return
    # Not dir(config), because the class of the config may define __dir__.
    names = (type if isinstance(config, type) else object).__dir__(config)
    for name in filter(is_tying_name, names):
        value = inspect.getattr_static(config, name, None)
        is_slot = isinstance(value, MemberDescriptorType)
        yield name, getattr(config, name, None) if is_slot else value


@functools.lru_cache(maxsize=1024)
def is_tying_name(name: str) -> bool:
    """Return whether a setting name means that output and embedding share their weights.

    A name that only mentions shared weights is not enough: layers or networks share weights, too.
    """
    words = frozenset(name.strip("_").lower().split("_")) - _FILLER_WORDS
    if words & _NEGATIONS:
        return False
    if words & _TIE_WORDS:
        return words <= _TIE_WORDS or bool(words & (_EMBEDDING_WORDS | _OUTPUT_WORDS))
    return bool(words & _SHARE_WORDS and words & _EMBEDDING_WORDS)
