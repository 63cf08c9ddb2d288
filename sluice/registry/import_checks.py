"""Checks of an imported version, made before anything of this version is stored."""

import re
from collections.abc import Iterator
from typing import Any

from sluice.base.errors import SettingsError
from sluice.base.settings import Record
from sluice.models.import_limits import ImportLimits
from sluice.models.settings import ModelSettings
from sluice.registry.lineage import Lineage
from sluice.registry.validation import find_name_problem

_ROLE_NAME = re.compile(r"[a-z][a-z0-9 _.-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_GATE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,39}")
"""Name of a gate or of an outcome."""
_MAX_INTEGER = 2**63 - 1
"""Maximum integer that a database column can store."""


def find_text_problem(value: Any, limits: ImportLimits) -> str:
    """Return why parsed JSON cannot be stored in a database or printed; "" if it can.

    Args:
        value: Parsed JSON.
        limits: Limits of imports, of which only the maximum length of a text is used.
    """
    for leaf in _leaves(value):
        if isinstance(leaf, int) and abs(leaf) > _MAX_INTEGER:
            return "an integer needs more than 64 bits"
        if isinstance(leaf, str):
            if len(leaf) > limits.max_text:
                return f"a text has {len(leaf):,} characters (max {limits.max_text:,})"
            if "\0" in leaf:
                return f"a text contains a NUL character: {leaf[:80]!r}"
            if not _is_unicode(leaf):
                return f"a text is not valid Unicode: {leaf[:80]!r}"
    return ""


def find_import_problem(
    lineage: Lineage,
    *,
    receipts: tuple[Any, ...],
    history: tuple[Record, ...],
    limits: ImportLimits,
) -> str:
    """Return why a version must not be imported, as a clause; "" if it may be.

    Args:
        lineage: Lineage from the file.
        receipts: Receipts from the file.
        history: History from the file.
        limits: Limits of imports, of which only the maximum counts are used.
    """
    for item_name, count, max_count in (
        ("members", len(lineage.members), limits.max_members),
        ("receipts", len(receipts), limits.max_receipts),
        ("history entries", len(history), limits.max_history),
    ):
        if count > max_count:
            return f"it has {count:,} {item_name} (max {max_count:,})"
    problem = find_name_problem(lineage.model)
    if problem:
        return problem
    missing_fields = lineage.missing_fields()
    if missing_fields:
        return f"its lineage lacks {', '.join(missing_fields)}"
    for role, digest in (lineage.other_artifacts() | lineage.weights()).items():
        if _DIGEST.fullmatch(digest) is None:
            return f"the digest of its {role[:80]!r} is malformed: {digest[:80]!r}"
    for role in lineage.artifacts:
        if _ROLE_NAME.fullmatch(role) is None:
            return f"an artifact has the invalid role {role[:80]!r}"
    for receipt in receipts:
        if not (_GATE_NAME.fullmatch(receipt.gate) and _GATE_NAME.fullmatch(receipt.outcome)):
            return (
                f"a receipt has the invalid gate {receipt.gate[:80]!r} or outcome "
                f"{receipt.outcome[:80]!r}"
            )
    return _find_settings_problem(lineage)


def _find_settings_problem(lineage: Lineage) -> str:
    config = lineage.resolved_config
    if not isinstance(config.get("workload_settings"), dict):
        return "its settings lack workload_settings"
    if not isinstance(config.get("model"), dict):
        return "its settings lack the settings of the model"
    try:
        ModelSettings.parse(config["model"], where="model")
    except SettingsError as error:
        return f"its settings are invalid: {error.what[:500].rstrip('.')}"
    return ""


def _leaves(value: Any) -> Iterator[Any]:
    """Yield all keys and values of nested containers, without recursion."""
    pending_items = [value]
    while pending_items:
        item = pending_items.pop()
        if isinstance(item, dict):
            pending_items += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending_items += item
        else:
            yield item


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # an unpaired surrogate, which JSON can represent
        return False
    return True
