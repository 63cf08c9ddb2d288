"""The event types of a log and the fields each must have (LOG-1): trainings and the gate itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.base.settings import nearest

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
    "gate_start": {"workload": "text", "level": "text", "checks": "names"},
    "check_start": {"name": "text", "requirement": "text"},
    "check_complete": {
        "name": "text",
        "requirement": "text",
        "outcome": "text",
        "seconds": "number",
        "summary": "text",
    },
    "gate_complete": {"outcome": "text", "seconds": "number"},
    "gate_stopped": {"reason": "text", "check": "text"},
}
"""Fields of every event type (LOG-1); a workload adds its metrics to fold and experiment."""

ENDED_BY: Mapping[str, tuple[str, ...]] = {
    "experiment_start": ("experiment_complete",),
    "fold_start": ("fold_complete", "experiment_complete"),
    "gate_start": ("gate_complete", "gate_stopped"),
}
"""What says that something that began came to its end; a crash leaves a log without it."""


ProblemKind = Literal[
    "empty",
    "no log",
    "no json",
    "no event",
    "unknown event",
    "field missing",
    "wrong type",
    "metric not named",
    "not finite",
    "no end",
]
"""What is wrong with, or strange about, a log, one of its lines or a field."""


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with one field; ``field`` is empty when it is the event as a whole."""

    kind: ProblemKind
    field: str
    what: str


def declared_fields(
    event: str, *, test_metrics: tuple[str, ...] | None, headline: str | None
) -> dict[str, FieldKind] | None:
    """Return the fields an event must have, or None when there is no such event type.

    Args:
        event: Name of the event type.
        test_metrics: Names every ``fold_complete`` must carry; None when they are not known.
        headline: Name every ``experiment_complete`` must carry; empty for none, None when it is
            not known.
    """
    fields = EVENT_FIELDS.get(event)
    if fields is None:
        return None
    added: tuple[str, ...] = ()
    if event == "fold_complete":
        added = test_metrics or ()
    elif event == "experiment_complete" and headline:
        added = (headline,)
    return {**fields, **dict.fromkeys(added, "number")}


def find_field_problems(
    event: str, fields: Mapping[str, Any], declared: Mapping[str, FieldKind] | None
) -> list[FieldProblem]:
    """Return what is wrong with an event's fields, the missing ones first.

    Args:
        event: Name of the event type.
        fields: What the event carries; more than is declared is allowed.
        declared: What ``declared_fields`` gave for it.
    """
    if declared is None:
        hint = nearest(event, list(EVENT_FIELDS))
        what = f"not an event type.{hint} Known: {', '.join(EVENT_FIELDS)}"
        return [FieldProblem("unknown event", "", what)]
    problems = []
    for name, kind in declared.items():
        if name not in fields:
            problems.append(FieldProblem("field missing", name, f"field '{name}' is missing"))
        elif not _is_kind(fields[name], kind):
            what = f"field '{name}' must be a {kind}, got {repr(fields[name])[:80]}"
            problems.append(FieldProblem("wrong type", name, what))
    return problems


def numbers_called(prefix: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the numbers that begin with ``prefix``, sorted."""
    return tuple(
        sorted(n for n, value in fields.items() if n.startswith(prefix) and _is_number(value))
    )


def _is_kind(value: Any, kind: FieldKind) -> bool:
    if kind == "text":
        return isinstance(value, str)
    if kind == "names":
        return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if kind == "mapping":
        return isinstance(value, Mapping)
    if kind == "whole number":
        return isinstance(value, int) and not isinstance(value, bool)
    return _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
