"""Event types in the logs of trainings and gates, and the required fields of each type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.base.settings import suggest_nearest

FieldKind = Literal["integer", "number", "string", "list of strings", "mapping"]

EVENT_FIELDS: Mapping[str, Mapping[str, FieldKind]] = {
    "experiment_start": {
        "architecture": "string",
        "features": "list of strings",
        "config": "mapping",
    },
    "fold_start": {
        "fold_id": "integer",
        "train_size": "integer",
        "val_size": "integer",
        "test_size": "integer",
    },
    "epoch_complete": {"epoch": "integer", "train_loss": "number", "val_loss": "number"},
    "fold_complete": {"fold_id": "integer"},
    "experiment_complete": {"total_folds": "integer", "elapsed_seconds": "number"},
    "gate_start": {"workload": "string", "level": "string", "checks": "list of strings"},
    "check_start": {"name": "string", "check_id": "string"},
    "check_complete": {
        "name": "string",
        "check_id": "string",
        "outcome": "string",
        "seconds": "number",
        "summary": "string",
    },
    "gate_complete": {"outcome": "string", "seconds": "number"},
    "gate_stopped": {"reason": "string", "check": "string"},
}
"""Required fields by event type. ``fold_complete`` and ``experiment_complete`` also contain
metrics of the workload."""

END_EVENTS: Mapping[str, tuple[str, ...]] = {
    "experiment_start": ("experiment_complete",),
    "fold_start": ("fold_complete", "experiment_complete"),
    "gate_start": ("gate_complete", "gate_stopped"),
}
"""End events of each start event; any one of them suffices. A crashed run has no end event."""


ProblemKind = Literal[
    "empty",
    "not a log",
    "invalid JSON",
    "no event type",
    "unknown event",
    "missing field",
    "wrong type",
    "unexpected metric",
    "non-finite",
    "missing end",
]
"""Kinds of problems and notes about a log, a line or a field."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A problem with one field of an event; ``field`` is empty for a problem of the whole event."""

    kind: ProblemKind
    field: str
    what: str


def required_fields(
    event: str, *, test_metrics: tuple[str, ...] | None, headline: str | None
) -> dict[str, FieldKind] | None:
    """Return the required fields of an event, or None for an unknown event type.

    Args:
        event: Name of the event type.
        test_metrics: Metrics that every ``fold_complete`` must contain; None if unknown.
        headline: Metric that every ``experiment_complete`` must contain; empty for no metric,
            None if unknown.
    """
    fields = EVENT_FIELDS.get(event)
    if fields is None:
        return None
    metrics: tuple[str, ...] = ()
    if event == "fold_complete":
        metrics = test_metrics or ()
    elif event == "experiment_complete" and headline:
        metrics = (headline,)
    return {**fields, **dict.fromkeys(metrics, "number")}


def find_field_problems(
    event: str, fields: Mapping[str, Any], required_kinds: Mapping[str, FieldKind] | None
) -> list[FieldProblem]:
    """Return the problems of an event's fields, in the order of the required fields.

    Args:
        event: Name of the event type.
        fields: Fields of the event; additional fields are allowed.
        required_kinds: Result of ``required_fields``.
    """
    if required_kinds is None:
        hint = suggest_nearest(event, list(EVENT_FIELDS))
        what = f"not an event type.{hint} Known: {', '.join(EVENT_FIELDS)}"
        return [FieldProblem("unknown event", "", what)]
    problems = []
    for name, kind in required_kinds.items():
        if name not in fields:
            problems.append(FieldProblem("missing field", name, f"field '{name}' is missing"))
        elif not _has_kind(fields[name], kind):
            what = f"field '{name}' must have the type {kind}, got {repr(fields[name])[:80]}"
            problems.append(FieldProblem("wrong type", name, what))
    return problems


def numeric_fields(prefix: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sorted names of numeric fields that start with ``prefix``."""
    return tuple(
        sorted(
            name for name, value in fields.items() if name.startswith(prefix) and _is_number(value)
        )
    )


def _has_kind(value: Any, kind: FieldKind) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "list of strings":
        return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if kind == "mapping":
        return isinstance(value, Mapping)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
