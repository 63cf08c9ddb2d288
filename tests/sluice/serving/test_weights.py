"""ROLL-1: which weights are possible, and which news about them are believed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.rollout.weights import Weights
from sluice.serving.weights import MemoryWeights, is_news
from tests.sluice.serving.serving_samples import candidate

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def weights(**changes: Any) -> Weights:
    return Weights(
        **(
            {
                "epoch": 5,
                "production": candidate("one"),
                "challenger": candidate("two"),
                "rollout": "r1",
                "share": 0.25,
                "expires_at": NOON,
            }
            | changes
        )
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"share": 1.1},
        {"share": -0.1},
        {"share": float("nan")},
        {"epoch": -1},
        {"rollout": None},
        {"challenger": None},
        {"challenger": None, "rollout": None},
        {"challenger": None, "rollout": None, "share": 0.0, "shadow": True},
        {"expires_at": datetime(2026, 3, 14)},
    ],
    ids=str,
)
def test_weights_that_contradict_themselves_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        weights(**changes)


@pytest.mark.parametrize(
    ("arrived", "believed"),
    [
        (weights(), False),
        (weights(epoch=6), True),
        (weights(epoch=6, share=0.0), True),
        (weights(epoch=4), False),
        (weights(epoch=4, expires_at=NOON + HOUR), False),
        (weights(share=1.0), False),
        (weights(expires_at=NOON + HOUR), True),
        (weights(expires_at=NOON - HOUR), False),
        (weights(expires_at=None), False),
        (weights(expires_at=NOON + HOUR, share=1.0), False),
    ],
    ids=lambda value: (
        f"epoch {value.epoch} {value.share} {value.expires_at}"
        if isinstance(value, Weights)
        else str(value)
    ),
)
def test_a_newer_epoch_or_a_renewed_lease_is_news(arrived: Weights, believed: bool) -> None:
    assert is_news(arrived, weights()) is believed


def test_anything_is_news_to_who_knows_nothing() -> None:
    assert is_news(weights(), None)


def test_a_lease_ends_at_its_moment() -> None:
    assert not weights().expired(NOON - timedelta(microseconds=1))
    assert weights().expired(NOON)
    assert not weights(expires_at=None).expired(NOON + HOUR)


def test_production_only_keeps_production_and_epoch() -> None:
    alone = weights(shadow=True).production_only()

    assert (alone.epoch, alone.production) == (5, candidate("one"))
    assert (alone.challenger, alone.rollout, alone.share, alone.shadow) == (None, None, 0.0, False)


def test_memory_holds_what_was_set_last() -> None:
    source = MemoryWeights(weights())
    source.set(weights(epoch=6))

    assert source.read().epoch == 6
