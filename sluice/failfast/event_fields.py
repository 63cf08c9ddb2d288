"""The event types of a training log and the fields each must have (LOG-1)."""

from collections.abc import Mapping
from typing import Any, Literal

from sluice.settings import nearest

FieldKind = Literal["whole number", "number", "text", "names", "mapping"]

EVENT_FIELDS: Mapping[str, Mapping[str, FieldKind]] = {
    "experiment_start": {"architecture": "text", "features": "names", "config": "mapping"},
    "fold_start": {
        "fold_id": "whole number",
        "train_size": "whole number",
        "val_size": "whole number",
        "test_size": "whole number",
    },
    "epoch_complete": {"epoch": "whole number", "train_loss": "number", "val_loss": "number"},
    "fold_complete": {"fold_id": "whole number"},
    "experiment_complete": {"total_folds": "whole number", "elapsed_seconds": "number"},
}
"""Fields of every event type (LOG-1); a workload adds its metrics to the last two."""


def declared_fields(
    event: str, *, test_metrics: tuple[str, ...], headline: str
) -> dict[str, FieldKind] | None:
    """Return the fields an event must have, or None when there is no such event type.

    Args:
        event: Name of the event type.
        test_metrics: Names every ``fold_complete`` must carry.
        headline: Name every ``experiment_complete`` must carry; empty for none.
    """
    fields = EVENT_FIELDS.get(event)
    if fields is None:
        return None
    added: tuple[str, ...] = ()
    if event == "fold_complete":
        added = test_metrics
    elif event == "experiment_complete" and headline:
        added = (headline,)
    return {**fields, **dict.fromkeys(added, "number")}


def field_problems(
    event: str, fields: Mapping[str, Any], declared: Mapping[str, FieldKind] | None
) -> list[str]:
    """Return what is wrong with an event's fields, one sentence part each."""
    if declared is None:
        hint = nearest(event, list(EVENT_FIELDS))
        return [f"not an event type.{hint} Known: {', '.join(EVENT_FIELDS)}"]
    missing = [f"field '{name}' is missing" for name in declared if name not in fields]
    wrong = [
        f"field '{name}' must be a {kind}, got {fields[name]!r}"
        for name, kind in declared.items()
        if name in fields and not _is_kind(fields[name], kind)
    ]
    return missing + wrong


def _is_kind(value: Any, kind: FieldKind) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "names":
        return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if kind == "mapping":
        return isinstance(value, Mapping)
    if kind == "whole number":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, int | float) and not isinstance(value, bool)
