"""ROLL-1: valid traffic splits, and which of two splits is newer."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.traffic_split import InMemoryTrafficSplit, is_newer
from tests.sluice.serving.serving_samples import candidate

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def split(**changes: Any) -> TrafficSplit:
    return TrafficSplit(
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
def test_inconsistent_splits_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        split(**changes)


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (split(), False),
        (split(epoch=6), True),
        (split(epoch=6, share=0.0), True),
        (split(epoch=4), False),
        (split(epoch=4, expires_at=NOON + HOUR), False),
        (split(share=1.0), False),
        (split(expires_at=NOON + HOUR), True),
        (split(expires_at=NOON - HOUR), False),
        (split(expires_at=None), False),
        (split(expires_at=NOON + HOUR, share=1.0), False),
    ],
    ids=lambda value: (
        f"epoch {value.epoch} {value.share} {value.expires_at}"
        if isinstance(value, TrafficSplit)
        else str(value)
    ),
)
def test_a_split_is_newer_by_a_higher_epoch_or_a_renewed_lease(
    received: TrafficSplit, expected: bool
) -> None:
    assert is_newer(received, split()) is expected


def test_any_split_is_newer_than_none() -> None:
    assert is_newer(split(), None)


def test_a_lease_ends_at_its_expiry() -> None:
    assert not split().is_expired(NOON - timedelta(microseconds=1))
    assert split().is_expired(NOON)
    assert not split(expires_at=None).is_expired(NOON + HOUR)


def test_production_only_keeps_production_and_epoch() -> None:
    alone = split(shadow=True).without_challenger()

    assert (alone.epoch, alone.production) == (5, candidate("one"))
    assert (
        alone.challenger,
        alone.rollout,
        alone.share,
        alone.shadow,
    ) == (None, None, 0.0, False)


def test_the_in_memory_split_is_the_last_one_set() -> None:
    source = InMemoryTrafficSplit(split())
    source.set(split(epoch=6))

    assert source.read().epoch == 6
