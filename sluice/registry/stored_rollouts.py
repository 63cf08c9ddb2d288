"""Reads rollouts that an earlier version of Sluice stored.

Stored rows never change, because the log of the registry covers their bytes. If fields or values
have new names, the old names are replaced when a row is read.
"""

import json
from typing import Any

from sluice.rollout.state import Rollout, Transition

CURRENT_FIELD_NAMES = {
    "patience_until": "step_times_out_at",
    "seen_at": "checked_at",
    "unshared": "evidence_counts",
    "errors_part": "errors_alpha_share",
    "start_part": "initial_alpha_share",
    "suspicion": "warn_alpha",
    "ratios": "odds_ratios",
    "max_dropped": "max_dropped_rate",
}
"""New names of renamed fields of rollouts, their settings and their counts, by old name."""

CURRENT_VALUES = {
    "phase": {"held": "awaiting_promotion"},
    "outcome": {"hold": "wait"},
    "verdict": {"calm": "ok", "suspect": "warn"},
}
"""Current values of renamed values, by stored field name and stored value."""


def parse_rollout(text: str) -> Rollout:
    """Parse a stored rollout.

    Raises:
        ValidationError: The text is not a rollout.
    """
    return Rollout.model_validate_json(with_current_names(text))


def parse_transition(text: str) -> Transition:
    """Parse a stored transition.

    Raises:
        ValidationError: The text is not a transition.
    """
    return Transition.model_validate_json(with_current_names(text))


def with_current_names(text: str) -> str:
    """Return a stored JSON text with the current names; a text that is not JSON is unchanged."""
    try:
        return json.dumps(_rename(json.loads(text)))
    except (ValueError, RecursionError):
        return text  # the caller's parser reports the invalid text


def _rename(value: Any) -> Any:
    if isinstance(value, list):
        return [_rename(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        CURRENT_FIELD_NAMES.get(name, name): CURRENT_VALUES.get(name, {}).get(item, item)
        if isinstance(item, str)
        else _rename(item)
        for name, item in value.items()
    }
