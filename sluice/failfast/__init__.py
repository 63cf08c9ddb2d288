"""Fail fast: everything that can ruin a long training is found in seconds, before it starts.

``check`` runs the whole gate; every validator behind it is usable alone::

    from sluice import failfast

    failfast.check(MyWorkload)
    failfast.validate_gradients(model.named_parameters(), warn_norm=100.0)

Nothing is imported until it is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.data.validation import validate_schema
    from sluice.failfast.event_log import EventLog, read_events, validate_log
    from sluice.failfast.gradients import validate_gradients
    from sluice.failfast.in_script import check
    from sluice.failfast.look_ahead import find_look_ahead
    from sluice.failfast.predictions import prediction_spread
    from sluice.failfast.selector import check_selector

_HOMES = {
    "check": "sluice.failfast.in_script",
    "validate_schema": "sluice.data.validation",
    "EventLog": "sluice.failfast.event_log",
    "read_events": "sluice.failfast.event_log",
    "validate_log": "sluice.failfast.event_log",
    "validate_gradients": "sluice.failfast.gradients",
    "find_look_ahead": "sluice.failfast.look_ahead",
    "prediction_spread": "sluice.failfast.predictions",
    "check_selector": "sluice.failfast.selector",
}

__all__ = [
    "EventLog",
    "check",
    "check_selector",
    "find_look_ahead",
    "prediction_spread",
    "read_events",
    "validate_gradients",
    "validate_log",
    "validate_schema",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
