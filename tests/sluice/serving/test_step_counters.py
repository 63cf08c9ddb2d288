"""ROLL-2: counts of a rollout step, and when a request counts as slower."""

from datetime import UTC, datetime, timedelta

import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.step_counters import StepCounters
from tests.sluice.serving.serving_samples import candidate

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)


def rollout(epoch: int) -> TrafficSplit:
    return TrafficSplit(
        epoch=epoch,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout="r1",
        share=0.5,
    )


def count_production_latencies(steps: StepCounters, *, epoch: int, count: int = 100) -> None:
    """Count latencies of 1 to ``count`` ms for production.

    The p95 of 100 is 95.05 ms; the threshold is 2 ms above it.
    """
    for number in range(1, count + 1):
        steps.count("production", split=rollout(epoch), seconds=number / 1000, fault=None)


def test_slower_means_above_the_p95_of_production_at_the_start_of_the_step() -> None:
    steps = StepCounters(rollout(1), now=NOON)
    count_production_latencies(steps, epoch=1)
    steps.set_split(rollout(2), now=NOON)
    assert steps.slow_threshold_s == pytest.approx(0.09705)

    for seconds in (0.09, 0.097, 0.0971, 0.5):
        steps.count("challenger", split=rollout(2), seconds=seconds, fault=None)
    for _ in range(200):  # production slows down during the step: the threshold stays
        steps.count("production", split=rollout(2), seconds=0.2, fault=None)
    window = steps.traffic_counts(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (4, 2)
    assert window.production.slower == 200
    assert steps.slow_threshold_s == pytest.approx(0.09705)


def test_nothing_counts_as_slower_before_production_has_enough_latencies() -> None:
    steps = StepCounters(rollout(1), now=NOON)
    steps.count("challenger", split=rollout(1), seconds=9.0, fault=None)
    count_production_latencies(steps, epoch=1, count=99)
    assert steps.slow_threshold_s is None
    count_production_latencies(steps, epoch=1, count=1)
    steps.count("challenger", split=rollout(1), seconds=9.0, fault=None)
    window = steps.traffic_counts(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (2, 1)


@pytest.mark.parametrize(
    ("fault", "slower"), [("timeouts", 1), ("not_finite", 1), ("errors", 0), (None, 1)]
)
def test_an_error_does_not_count_as_slower(fault: str, slower: int) -> None:
    steps = StepCounters(rollout(1), now=NOON)
    count_production_latencies(steps, epoch=1)
    steps.set_split(rollout(2), now=NOON)
    steps.count("challenger", split=rollout(2), seconds=9.0, fault=fault)  # type: ignore[arg-type]
    window = steps.traffic_counts(NOON)

    assert window is not None
    assert window.challenger.slower == slower
    assert window.challenger.requests == 1


def test_a_request_of_an_earlier_step_is_not_counted() -> None:
    steps = StepCounters(rollout(1), now=NOON)
    steps.set_split(rollout(2), now=NOON)
    steps.count("challenger", split=rollout(1), seconds=0.1, fault="errors")
    window = steps.traffic_counts(NOON)

    assert window is not None
    assert window.challenger.requests == 0


def test_a_shadow_request_never_counts_as_slower() -> None:
    steps = StepCounters(rollout(1), now=NOON)
    count_production_latencies(steps, epoch=1)
    steps.count("challenger", split=rollout(1), seconds=None, fault=None)
    steps.count_dropped()
    window = steps.traffic_counts(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (1, 0)
    assert window.shadow_dropped == 1


def test_a_new_epoch_starts_a_step_and_a_renewed_lease_does_not() -> None:
    steps = StepCounters(rollout(1), now=NOON)
    steps.count("challenger", split=rollout(1), seconds=0.1, fault=None)
    later = rollout(1).model_copy(update={"expires_at": NOON + timedelta(hours=2)})
    steps.set_split(later, now=NOON + timedelta(minutes=1))
    kept = steps.traffic_counts(NOON + timedelta(minutes=2))
    steps.set_split(rollout(2), now=NOON + timedelta(minutes=3))
    new = steps.traffic_counts(NOON)  # the clock went backwards

    assert kept is not None
    assert new is not None
    assert (kept.since, kept.challenger.requests) == (NOON, 1)
    assert (new.since, new.until) == (NOON + timedelta(minutes=3), NOON + timedelta(minutes=3))
    assert new.challenger.requests == 0


def test_without_a_rollout_there_are_no_traffic_counts() -> None:
    assert (
        StepCounters(TrafficSplit(epoch=1, production=candidate("one")), now=NOON).traffic_counts(
            NOON
        )
        is None
    )


def test_nothing_counts_as_slower_in_a_shadow_step() -> None:
    """A shadow request has no comparable latency, so only one arm would be measured."""
    steps = StepCounters(rollout(1), now=NOON)
    count_production_latencies(steps, epoch=1)
    steps.set_split(rollout(2).model_copy(update={"share": 1.0, "shadow": True}), now=NOON)
    steps.count("challenger", split=rollout(2), seconds=9.0, fault=None)
    window = steps.traffic_counts(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (1, 0)
