"""Parses untrusted JSON with a limit of the nesting depth, and rejects duplicate keys."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

MAX_JSON_DEPTH = 64
"""Maximum nesting of objects and lists [levels]; files written by Sluice have about ten."""

_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
"""Matches brackets, and whole strings, so that brackets inside strings are skipped."""


def parse_strict_json(text: bytes, *, require_finite: bool) -> Any:
    """Parse a JSON document in UTF-8 into Python values.

    Args:
        text: The whole document.
        require_finite: Whether to reject NaN and infinity, which are not part of the JSON standard.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has a duplicate key. With
            ``require_finite``, also if it contains a non-finite number, such as NaN or 1e999.
            Duplicate keys are rejected, because parsers disagree about which value counts.
    """
    _require_shallow(text)
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_require_distinct_keys,
            parse_constant=_reject_constant if require_finite else None,
            parse_float=_parse_finite if require_finite else None,
        )
    except RecursionError:  # the stack of an interpreter may be too small for MAX_JSON_DEPTH
        raise ValueError("it is nested too deeply") from None


def _require_shallow(text: bytes) -> None:
    """Check the depth by counting brackets, because the parser itself would exhaust the stack."""
    depth = 0
    for token in _STRINGS_AND_BRACKETS.finditer(text):
        first_byte = token[0][:1]
        if first_byte in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")
        elif first_byte in b"]}":
            depth -= 1


def _require_distinct_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary; raise ValueError for a duplicate key."""
    value_by_key = dict(pairs)
    if len(value_by_key) != len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {duplicate[:80]!r} is duplicated")
    return value_by_key


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:80]} is too large")
    return number
