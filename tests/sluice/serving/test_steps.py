"""ROLL-2: counts of a step, and what slower means."""

from datetime import UTC, datetime, timedelta

import pytest

from sluice.rollout.weights import Weights
from sluice.serving.steps import Steps
from tests.sluice.serving.serving_samples import candidate

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)


def rollout(epoch: int) -> Weights:
    return Weights(
        epoch=epoch,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout="r1",
        share=0.5,
    )


def warm(steps: Steps, *, epoch: int, count: int = 100) -> None:
    """Production takes 1 to ``count`` ms: the p95 of 100 is 95.05 ms, and 2 ms are let pass."""
    for number in range(1, count + 1):
        steps.count("production", weights=rollout(epoch), seconds=number / 1000, fault=None)


def test_slower_is_against_productions_p95_when_the_step_began() -> None:
    steps = Steps(rollout(1), now=NOON)
    warm(steps, epoch=1)
    steps.follow(rollout(2), now=NOON)
    assert steps.slow_s == pytest.approx(0.09705)

    for seconds in (0.09, 0.097, 0.0971, 0.5):
        steps.count("challenger", weights=rollout(2), seconds=seconds, fault=None)
    for _ in range(200):  # production slows down in the step: the mark stays
        steps.count("production", weights=rollout(2), seconds=0.2, fault=None)
    window = steps.window(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (4, 2)
    assert window.production.slower == 200
    assert steps.slow_s == pytest.approx(0.09705)


def test_a_server_that_has_just_started_calls_nothing_slower_until_production_showed_enough() -> (
    None
):
    steps = Steps(rollout(1), now=NOON)
    steps.count("challenger", weights=rollout(1), seconds=9.0, fault=None)
    warm(steps, epoch=1, count=99)
    assert steps.slow_s is None
    warm(steps, epoch=1, count=1)
    steps.count("challenger", weights=rollout(1), seconds=9.0, fault=None)
    window = steps.window(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (2, 1)


@pytest.mark.parametrize(
    ("fault", "slower"), [("timeouts", 1), ("not_finite", 1), ("errors", 0), (None, 1)]
)
def test_what_raised_is_an_error_and_not_slow(fault: str, slower: int) -> None:
    steps = Steps(rollout(1), now=NOON)
    warm(steps, epoch=1)
    steps.follow(rollout(2), now=NOON)
    steps.count("challenger", weights=rollout(2), seconds=9.0, fault=fault)  # type: ignore[arg-type]
    window = steps.window(NOON)

    assert window is not None
    assert window.challenger.slower == slower
    assert window.challenger.requests == 1


def test_a_request_of_an_earlier_step_is_not_counted() -> None:
    steps = Steps(rollout(1), now=NOON)
    steps.follow(rollout(2), now=NOON)
    steps.count("challenger", weights=rollout(1), seconds=0.1, fault="errors")
    window = steps.window(NOON)

    assert window is not None
    assert window.challenger.requests == 0


def test_a_shadow_copy_is_never_slower() -> None:
    steps = Steps(rollout(1), now=NOON)
    warm(steps, epoch=1)
    steps.count("challenger", weights=rollout(1), seconds=None, fault=None)
    steps.count_dropped()
    window = steps.window(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (1, 0)
    assert window.shadow_dropped == 1


def test_a_step_begins_with_its_epoch_and_a_renewed_lease_begins_none() -> None:
    steps = Steps(rollout(1), now=NOON)
    steps.count("challenger", weights=rollout(1), seconds=0.1, fault=None)
    later = rollout(1).model_copy(update={"expires_at": NOON + timedelta(hours=2)})
    steps.follow(later, now=NOON + timedelta(minutes=1))
    kept = steps.window(NOON + timedelta(minutes=2))
    steps.follow(rollout(2), now=NOON + timedelta(minutes=3))
    new = steps.window(NOON)  # the clock went back

    assert kept is not None
    assert new is not None
    assert (kept.since, kept.challenger.requests) == (NOON, 1)
    assert (new.since, new.until) == (NOON + timedelta(minutes=3), NOON + timedelta(minutes=3))
    assert new.challenger.requests == 0


def test_without_a_rollout_there_is_no_window() -> None:
    assert Steps(Weights(epoch=1, production=candidate("one")), now=NOON).window(NOON) is None


def test_a_step_with_copies_calls_nothing_slower() -> None:
    """A copy has no latency: the arm that answers would be judged alone."""
    steps = Steps(rollout(1), now=NOON)
    warm(steps, epoch=1)
    steps.follow(rollout(2).model_copy(update={"share": 1.0, "shadow": True}), now=NOON)
    steps.count("challenger", weights=rollout(2), seconds=9.0, fault=None)
    window = steps.window(NOON)

    assert window is not None
    assert (window.challenger.requests, window.challenger.slower) == (1, 0)
