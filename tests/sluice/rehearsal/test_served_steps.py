"""ROLL-2: steps of a rehearsal end on evidence, and the page shows the served shares."""

import re
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from sluice.rehearsal.page import rehearsal_page
from sluice.rehearsal.plots import evidence_figure
from sluice.rehearsal.result import Rehearsal, RehearsalSample
from sluice.rehearsal.run import _duration_s
from sluice.rehearsal.served_steps import served_steps
from sluice.rehearsal.settings import FAULTY_SHARE, count_requests_to_breach, shorten_steps
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import ArmCounts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Transition
from sluice.rollout.transitions import promote
from tests.sluice.rollout.rollout_samples import NOW, assess, make_rollout, make_verdict


@pytest.mark.parametrize("share", [0.01, 0.05, 0.25, 0.5])
@pytest.mark.parametrize("alpha", [0.01, 0.001])
def test_a_faulty_challenger_is_rolled_back_within_the_requests_of_a_step(
    share: float, alpha: float
) -> None:
    settings = RolloutSettings(alpha=alpha, min_step_s=1)
    requests = count_requests_to_breach(settings, share)
    faulty = ArmCounts(requests=requests, errors=round(FAULTY_SHARE * requests))
    healthy = ArmCounts(requests=round(requests * (1 - share) / share))

    after_breach = assess(make_rollout(settings), challenger=faulty, production=healthy)
    few = assess(
        make_rollout(settings), challenger=ArmCounts(requests=4, errors=1), production=healthy
    )

    assert after_breach.outcome == "roll_back"
    assert few.outcome == "wait"


@pytest.mark.parametrize("seconds", [20.0, 60.0, 3600.0])
@pytest.mark.parametrize("strategy", ["canary", "shadow", "blue-green", "ab"])
def test_no_step_of_a_rehearsal_ends_before_its_guards_can_react(
    seconds: float, strategy: str
) -> None:
    settings = RolloutSettings.parse({"strategy": strategy, "lease_s": 7200.0}, where="test")
    short = shorten_steps(settings, seconds=seconds, step_timeout_s=seconds + 60)
    share = min((step.share for step in short.steps if not step.is_shadowed), default=0.5)

    assert short.min_requests >= count_requests_to_breach(settings, share)
    few = ArmCounts(requests=short.min_requests - 1)
    step = assess(make_rollout(short), after_s=seconds, challenger=few, production=few)
    assert step.outcome == "wait"
    assert f"Not enough evidence: {few.requests} of {short.min_requests}" in step.reason


@pytest.fixture(scope="module")
def promoted() -> Rehearsal:
    """A canary whose challenger got slightly less than its share and was promoted."""
    settings = RolloutSettings(min_step_s=60, min_requests=100, max_step_s=600, lease_s=120)
    at, transitions, samples = make_rollout(settings), [], []
    transitions.append(
        Transition(outcome="start", rollout=at, at=NOW, actor="ada", reason="A rehearsal.")
    )
    for challenger, production in ((400, 9600), (2400, 7600), (4900, 5100), (1000, 1000)):
        transition = assess(
            at,
            challenger=ArmCounts(requests=challenger),
            production=ArmCounts(requests=production),
        )
        at_s = (transition.at - NOW).total_seconds()
        readings = read_guards(transition.rollout.evidence, settings)
        samples.append(
            RehearsalSample(
                at_s=at_s,
                share=at.share,
                step=at.step,
                challenger=challenger,
                production=production,
                evidence={reading.guard: reading.evidence for reading in readings},
                distance=None,
            )
        )
        transitions.append(transition)
        at = transition.rollout
    transitions.append(promote(at, now=at.checked_at, actor="ada", reason="Every step passed."))
    return Rehearsal(
        model="m",
        version=1,
        fault="none",
        seed=0,
        seconds=60,
        started_at=NOW,
        held_out_rows=100,
        ended="promoted",
        reason="Every step passed.",
        duration_s=240,
        sync_delay_s=0.1,
        sent=1,
        answered=1,
        failed=0,
        failure="",
        problems=(),
        limits={reading.guard: reading.limit for reading in readings},
        drift_limit=4,
        transitions=tuple(transitions),
        samples=tuple(samples),
    )


def test_each_step_has_its_planned_and_served_share(promoted: Rehearsal) -> None:
    steps = served_steps(promoted.transitions)

    assert [(step.number, step.share, step.served_share) for step in steps] == [
        (1, 0.05, 0.04),
        (2, 0.25, 0.24),
        (3, 0.5, 0.49),
        (4, 1.0, 1.0),  # production gets only shadow requests
    ]
    assert [step.is_shadowed for step in steps] == [False, False, False, True]
    assert [(step.until - step.since).total_seconds() for step in steps] == [60] * 4


def test_the_page_shows_the_served_shares_and_all_users_after_a_promotion(
    promoted: Rehearsal,
) -> None:
    page = rehearsal_page(promoted)
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))

    assert "1 5 % 4 % 400 9,600 60.0" in words
    assert "4 100 % 100 % 1,000 1,000 60.0" in words
    assert "240.0 promote 100 %" in words
    assert "promote 0 %" not in words
    assert "Step 1 of 4 passed on 400 requests of the challenger and 9,600 of production" in words


@pytest.mark.parametrize(
    ("fault", "evidence"),
    [
        ("errors", {"challenger": ArmCounts(requests=400, errors=200)}),
        ("latency", {"challenger": ArmCounts(requests=400, slower=200)}),
        ("latency", {"challenger": ArmCounts(requests=400, timeouts=200)}),
        ("nan", {"challenger": ArmCounts(requests=400, not_finite=200)}),
        ("drift", {"drift": PredictionDrift(distance=9, limit=4, rows=400)}),
        ("quality", {"quality": make_verdict("REJECT")}),
    ],
)
def test_the_reason_of_a_rollback_identifies_the_injected_fault(
    promoted: Rehearsal, fault: str, evidence: dict[str, Any]
) -> None:
    rolled_back = assess(make_rollout(), **evidence)
    changes = {"fault": fault, "ended": "rolled_back", "reason": rolled_back.reason}

    assert rolled_back.outcome == "roll_back"
    assert promoted.model_copy(update=changes).deviations == ()


def test_each_guard_has_its_own_row_in_the_figure(promoted: Rehearsal) -> None:
    figure = evidence_figure(promoted)
    figure.canvas.draw()
    boxes = [axes.get_position() for axes in figure.axes]
    names = [axes.get_ylabel() for axes in figure.axes]

    assert names == ["errors", "late", "NaN or\ninfinite", "slower", "prediction\ndistance"]
    for above, below in pairwise(boxes):
        assert below.y1 < above.y0
    assert [text.get_text() for text in figure.axes[-1].texts] == ["not measured"]


def test_only_an_unexpected_end_has_advice(
    promoted: Rehearsal,
) -> None:
    """On a busy machine a rehearsal may pause before the guards have enough evidence."""
    slow = promoted.model_copy(
        update={
            "fault": "errors",
            "ended": "paused",
            "reason": "Guards warn.",
            "duration_s": 121.4,
            "sent": 785,
            "answered": 785,
            "seconds": 60.0,
        }
    )
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", rehearsal_page(slow)))

    assert promoted.remedy == ""
    assert "785 requests in 121 s, which is 6.5 per second; 40 per second" in slow.remedy
    assert slow.remedy.endswith("sluice rollout rehearse m --fault errors --seconds 120")
    assert slow.remedy in words
    for ending in ("promoted", "rolled_back", "timed_out"):
        other = slow.model_copy(update={"ended": ending})
        assert "sluice rollout rehearse m --fault errors" in other.remedy
        assert not re.search("resume|abort", other.remedy, re.IGNORECASE)


@pytest.mark.parametrize(
    "expected_end",
    [
        {},
        {"fault": "errors", "ended": "rolled_back", "reason": "20 % errors in 30 requests."},
    ],
)
def test_requests_without_a_response_are_not_blamed_on_the_guards_or_another_fault(
    promoted: Rehearsal, expected_end: dict[str, Any]
) -> None:
    rehearsal = promoted.model_copy(update={**expected_end, "sent": 10, "answered": 7})

    assert rehearsal.deviations == ("3 requests got no response.",)
    assert rehearsal.remedy.startswith("The rollout ended as expected, but some requests got nei")
    assert rehearsal.remedy.endswith(f"rollout rehearse m --fault {rehearsal.fault}")


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"fault": "errors"}, "The guards did not detect the fault."),
        ({"ended": "rolled_back"}, "No fault was planted, but something ended the rollout"),
        (
            {"fault": "errors", "ended": "rolled_back", "reason": "Other."},
            "Something other than the planted fault ended the rollout",
        ),
    ],
)
def test_the_advice_on_the_end_of_the_rollout_precedes_that_on_requests_without_a_response(
    promoted: Rehearsal, changes: dict[str, Any], advice: str
) -> None:
    rehearsal = promoted.model_copy(update={**changes, "sent": 10, "answered": 7})

    assert rehearsal.remedy.startswith(advice)


def test_a_rehearsal_without_traffic_that_times_out_is_repeated_with_more_time(
    promoted: Rehearsal,
) -> None:
    changes = {"fault": "no_traffic", "ended": "timed_out", "sent": 0, "answered": 0}
    rehearsal = promoted.model_copy(update=changes)

    assert rehearsal.remedy == (
        "Rehearse again when the machine is less busy, with more time: "
        "sluice rollout rehearse m --fault no_traffic --seconds 120"
    )


def test_a_rehearsal_that_times_out_lasts_until_its_time_limit() -> None:
    rolling = make_rollout(RolloutSettings())
    times = {
        "last_transition_at": NOW + timedelta(seconds=30),
        "ended_at": NOW + timedelta(seconds=180),
    }

    assert _duration_s(rolling, **times) == 180
    assert _duration_s(rolling.model_copy(update={"phase": "rolled_back"}), **times) == 30
    assert _duration_s(rolling.model_copy(update={"phase": "paused"}), **times) == 30
