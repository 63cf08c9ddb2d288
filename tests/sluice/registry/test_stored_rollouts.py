"""Rollouts that an earlier version of Sluice stored are read with the current names."""

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
from tests.sluice.rollout.rollout_samples import NOW, rollout, window

EARLIER_FIELDS = {new: old for old, new in CURRENT_FIELD_NAMES.items()}
EARLIER_VALUES = {
    name: {new: old for old, new in values.items()} for name, values in CURRENT_VALUES.items()
}


def earlier(value):
    """Return JSON as an earlier version wrote it."""
    if isinstance(value, list):
        return [earlier(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        EARLIER_FIELDS.get(name, name): EARLIER_VALUES.get(name, {}).get(item, item)
        if isinstance(item, str)
        else earlier(item)
        for name, item in value.items()
    }


def waiting() -> Transition:
    reading = GuardReading(
        guard="errors", evidence=2.0, limit=30.0, challenger=1, production=0, verdict="warn"
    )
    held = rollout().model_copy(update={"phase": "awaiting_promotion"})
    return Transition(
        outcome="wait",
        rollout=held,
        at=NOW,
        actor="sensor",
        reason="Not enough evidence.",
        window=window(held, at=NOW),
        guards=(reading,),
    )


def test_an_earlier_rollout_is_read():
    text = json.dumps(earlier(json.loads(rollout().model_dump_json())))

    assert "seen_at" in text
    assert "max_dropped_rate" not in text
    assert parse_rollout(text) == rollout()


def test_an_earlier_transition_is_read():
    text = json.dumps(earlier(json.loads(waiting().model_dump_json())))

    assert '"held"' in text
    assert '"suspect"' in text
    assert '"unshared"' in text
    assert parse_transition(text) == waiting()


def test_a_current_transition_is_read():
    assert parse_transition(waiting().model_dump_json()) == waiting()


@pytest.mark.parametrize("text", ["", "[1", "{}", '{"phase": "held"}'])
def test_other_text_is_refused(text):
    with pytest.raises(ValidationError):
        parse_rollout(text)
