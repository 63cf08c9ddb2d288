"""Parses untrusted JSON: limits the nesting depth and rejects duplicate keys."""

import json
import re
from collections.abc import Sequence
from typing import Any

MAX_JSON_DEPTH = 64
"""Maximum nesting of objects and lists [levels]; files written by Sluice have about ten."""

_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
"""Matches whole strings, which are skipped, and brackets."""


def parse_strict_json(text: bytes, *, finite: bool) -> Any:
    """Parse a JSON document in UTF-8 into Python values.

    Args:
        text: The whole document.
        finite: Whether to reject NaN and infinity, which are not part of the JSON standard.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, has a duplicate key, or contains
            a non-finite number although ``finite`` is set. Duplicate keys are rejected because
            parsers disagree about which value counts.
    """
    _require_shallow(text)
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_distinct,
            parse_constant=_refuse_constant if finite else None,
        )
    except RecursionError:  # the depth is checked above; an interpreter may have a small stack
        raise ValueError("it is nested too deeply") from None


def _require_shallow(text: bytes) -> None:
    """Check the depth by counting brackets: the parser itself would exhaust the stack."""
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
        raise ValueError(f"the key {twice[:80]!r} is duplicated")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
