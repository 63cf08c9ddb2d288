"""JSON from a file that somebody else wrote: bounded in depth, without doubled keys."""

import json
import re
from collections.abc import Sequence
from typing import Any

MAX_JSON_DEPTH = 64
"""Deepest nesting of objects and lists that is read [levels]; Sluice writes about ten."""

_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
"""Strings, which are passed over whole, and brackets."""


def parse_strict_json(text: bytes, *, finite: bool) -> Any:
    """Return what JSON text in UTF-8 says, as Python values.

    Args:
        text: The whole document.
        finite: Refuse NaN and infinity, which strict JSON does not have either.

    Raises:
        ValueError: It is no JSON, is nested too deep, has a key twice, or a number that must be
            finite is not. Two parsers may read a doubled key as two different documents.
    """
    _require_shallow(text)
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_distinct,
            parse_constant=_refuse_constant if finite else None,
        )
    except RecursionError:  # depth is bounded above; this is for an interpreter with a small stack
        raise ValueError("it is nested too deep") from None


def _require_shallow(text: bytes) -> None:
    """Count brackets outside strings: the parser itself would use up the stack."""
    depth = 0
    for token in _TOKENS.finditer(text):
        first = token[0][:1]
        if first in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")
        elif first in b"]}":
            depth -= 1


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
