"""Rollouts stored with earlier names of fields and values are read with the current names."""

import json

import pytest
from pydantic import ValidationError

from sluice.registry.stored_rollouts import (
    CURRENT_FIELD_NAMES,
    CURRENT_VALUES,
    parse_rollout,
    parse_transition,
)
from sluice.rollout.state import GuardReading, Transition
from tests.sluice.rollout.rollout_samples import NOW, make_rollout, make_traffic_counts

EARLIER_FIELDS = {new: old for old, new in CURRENT_FIELD_NAMES.items()}
EARLIER_VALUES = {
    name: {new: old for old, new in values.items()} for name, values in CURRENT_VALUES.items()
}


def to_earlier_format(value):
    """Return parsed JSON with the names of fields and values of an earlier version."""
    if isinstance(value, list):
        return [to_earlier_format(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        EARLIER_FIELDS.get(name, name): EARLIER_VALUES.get(name, {}).get(item, item)
        if isinstance(item, str)
        else to_earlier_format(item)
        for name, item in value.items()
    }


def make_waiting_transition() -> Transition:
    reading = GuardReading(
        guard="errors", evidence=2.0, limit=30.0, challenger=1, production=0, verdict="warn"
    )
    awaiting = make_rollout().model_copy(update={"phase": "awaiting_promotion"})
    return Transition(
        outcome="wait",
        rollout=awaiting,
        at=NOW,
        actor="sensor",
        reason="Not enough evidence.",
        window=make_traffic_counts(awaiting, at=NOW),
        guards=(reading,),
    )


def test_rollout_in_the_earlier_format_is_read():
    text = json.dumps(to_earlier_format(json.loads(make_rollout().model_dump_json())))

    assert "seen_at" in text
    assert "max_dropped_rate" not in text
    assert parse_rollout(text) == make_rollout()


def test_transition_in_the_earlier_format_is_read():
    text = json.dumps(to_earlier_format(json.loads(make_waiting_transition().model_dump_json())))

    assert '"held"' in text
    assert '"suspect"' in text
    assert '"unshared"' in text
    assert parse_transition(text) == make_waiting_transition()


def test_transition_in_the_current_format_is_read():
    assert (
        parse_transition(make_waiting_transition().model_dump_json()) == make_waiting_transition()
    )


@pytest.mark.parametrize("text", ["", "[1", "{}", '{"phase": "held"}'])
def test_invalid_rollout_text_is_rejected(text):
    with pytest.raises(ValidationError):
        parse_rollout(text)
