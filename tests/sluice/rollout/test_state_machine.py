"""Transitions of a rollout by its state machine (ROLL-1, ROLL-2)."""

from datetime import timedelta

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.rollout.observations import ArmCounts, merge_counts
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Rollout, Transition
from sluice.rollout.state_machine import advance
from sluice.rollout.traffic_split import split_in_force
from sluice.rollout.transitions import abort, pause, promote, resume
from tests.sluice.rollout.rollout_samples import (
    HEALTHY,
    PRODUCTION,
    SETTINGS,
    UNHEALTHY,
    assess,
    make_rollout,
    make_traffic_counts,
    make_verdict,
)

BY = {"actor": "ada", "reason": "to see"}
FAR = PredictionDrift(distance=0.6, limit=0.5, rows=400)
NEAR = PredictionDrift(distance=0.4, limit=0.5, rows=400)
NO_PAIRS = PredictionDrift(distance=float("nan"), limit=0.5, rows=0)
NAN_DRIFT = PredictionDrift(distance=float("nan"), limit=0.5, rows=400)


def settings(**changed: object) -> RolloutSettings:
    return SETTINGS.model_copy(update=changed)


def last_step(**changed: object) -> Rollout:
    at = make_rollout(settings(**changed))
    return at.model_copy(update={"step": len(at.settings.steps) - 1})


def test_healthy_canary_passes_all_steps_and_awaits_promotion():
    at, shares = make_rollout(), []
    while at.phase == "rolling":
        shares.append(at.share)
        transition = assess(at)
        assert transition.outcome == "advance"
        at = transition.rollout

    assert shares == [0.05, 0.25, 0.5, 1.0]
    assert (at.phase, at.share, at.epoch, at.revision) == ("awaiting_promotion", 1.0, 7, 4)
    assert assess(at).outcome == "wait"
    assert promote(at, now=at.checked_at, **BY).rollout.phase == "promoted"


def test_harm_rolls_back_before_the_minimum_step_time():
    transition = assess(make_rollout(), after_s=2, challenger=UNHEALTHY)

    assert (transition.outcome, transition.rollout.phase) == ("roll_back", "rolled_back")
    assert (transition.rollout.share, transition.rollout.epoch) == (0.0, 5)
    assert "200 errors in 1,000 requests of the challenger, 10 in 1,000" in transition.reason
    assert transition.guards[0].verdict == "breach"
    assert transition.remedy


def test_harm_that_begins_in_a_later_step_is_detected():
    second = assess(make_rollout()).rollout

    assert second.step == 1
    assert assess(second, after_s=2, challenger=UNHEALTHY).outcome == "roll_back"


@pytest.mark.parametrize("guard", ["errors", "timeouts", "not_finite", "slower"])
def test_each_guard_detects_its_own_fault(guard):
    many_faults = ArmCounts(requests=1000, **{guard: 150})
    few_faults = ArmCounts(requests=1000, **{guard: 10})

    transition = assess(make_rollout(), after_s=2, challenger=many_faults, production=few_faults)

    assert transition.outcome == "roll_back"
    assert [r.guard for r in transition.guards if r.verdict == "breach"] == [guard]


@pytest.mark.parametrize(
    ("after_s", "changed", "message"),
    [
        (59, {}, "59 of 60 s"),
        (60, {"challenger": ArmCounts(requests=99)}, "99 of 100 requests of the challenger"),
        (60, {"challenger": ArmCounts()}, "0 of 100 requests of the challenger"),
        (60, {"production": ArmCounts()}, "0 of 100 requests of production"),
        (
            60,
            {"epoch": 3},
            "servers have counts for epoch 3, but the traffic split has epoch 4",
        ),
        (60, {"epoch": 5}, "servers have counts for epoch 5"),
        (60, {"drift": NO_PAIRS}, "is unknown: 0 of 100 requests were answered by both arms"),
        (60, {"drift": NAN_DRIFT}, "is unknown: it is NaN on 400 requests."),
        (
            60,
            {"challenger": ArmCounts(requests=1000, errors=34, slower=50)},
            "Guards warn: 34 errors",
        ),
    ],
)
def test_missing_evidence_waits_and_is_named_in_the_reason(after_s, changed, message):
    transition = assess(make_rollout(), after_s=after_s, **changed)

    assert transition.outcome == "wait"
    assert message in transition.reason
    assert transition.rollout.revision == 0
    assert transition.rollout.share == 0.05


def test_servers_without_the_challenger_cannot_end_a_step():
    at = make_rollout()
    now = at.checked_at + timedelta(seconds=60)
    counts_by_server = {
        "with": make_traffic_counts(at, at=now, production=ArmCounts(requests=99, errors=1)),
        "without": make_traffic_counts(at, at=now, challenger=ArmCounts()),
    }
    merged = merge_counts(counts_by_server, rollout=at.id, epoch=at.epoch, since=at.step_since)

    transition = advance(at, merged, now=now, production=PRODUCTION)

    assert merged.production.requests == 1099
    assert transition.reason == (
        "Not enough evidence: 99 of 100 requests of production were counted."
    )
    assert [reading.production for reading in transition.guards] == [1, 0, 0, 0]


def test_rollout_without_traffic_pauses_and_stays_paused():
    """ROLL-2: the rollout pauses when the step times out."""
    at, outcomes = make_rollout(), []
    for _ in range(8):
        transition = assess(at, after_s=100, challenger=ArmCounts(), production=ArmCounts())
        outcomes.append(transition.outcome)
        at = transition.rollout

    assert outcomes == ["wait"] * 5 + ["inconclusive"] + ["wait"] * 2
    assert (at.phase, at.share) == ("paused", 0.05)


def test_paused_rollout_does_not_advance_but_rolls_back_on_harm():
    paused = pause(make_rollout(), now=make_rollout().checked_at, **BY).rollout

    assert assess(paused).outcome == "wait"
    assert assess(paused, challenger=UNHEALTHY).outcome == "roll_back"


def test_resumed_rollout_has_a_new_timeout_and_the_same_share():
    at = make_rollout()
    for _ in range(6):
        at = assess(at, after_s=100, challenger=ArmCounts()).rollout
    resumed = resume(at, now=at.checked_at, **BY)

    assert (resumed.rollout.phase, resumed.rollout.share) == ("rolling", at.share)
    assert resumed.rollout.epoch == at.epoch
    assert assess(resumed.rollout, after_s=100, challenger=ArmCounts()).outcome == "wait"
    assert assess(resumed.rollout).outcome == "advance"


def test_prediction_drift_rolls_back():
    assert assess(make_rollout(), after_s=2, drift=FAR).outcome == "roll_back"
    assert assess(make_rollout(), drift=NEAR).outcome == "advance"


@pytest.mark.parametrize(
    ("outcome", "when_known", "required"),
    [
        (None, "advance", "wait"),
        ("PROMOTE", "advance", "advance"),
        ("EQUIVALENT", "advance", "wait"),
        ("INCONCLUSIVE", "advance", "wait"),
        ("REJECT", "roll_back", "roll_back"),
    ],
)
def test_verdict_on_labelled_rows_is_required_only_at_the_last_step(outcome, when_known, required):
    quality = None if outcome is None else make_verdict(outcome)

    assert assess(last_step(), quality=quality).outcome == when_known
    assert assess(last_step(quality="required"), quality=quality).outcome == required
    assert assess(last_step(strategy="ab"), quality=quality).outcome == required
    if outcome != "REJECT":  # earlier steps do not wait for labels
        assert (
            assess(make_rollout(settings(quality="required")), quality=quality).outcome == "advance"
        )


def test_dropped_shadow_requests_block_a_shadow_step():
    shadow = make_rollout(settings(strategy="shadow"))

    assert assess(shadow, dropped=50).outcome == "advance"
    transition = assess(shadow, dropped=60)
    assert transition.outcome == "wait"
    assert "60 of 1060 shadow requests were dropped" in transition.reason


def test_failures_without_comparison_block_a_step() -> None:
    """A client that keeps the server busy must not hide the challenger's faults."""
    assert assess(make_rollout(), dropped=1).outcome == "advance", "1 of 20"
    transition = assess(make_rollout(), dropped=2)

    assert transition.outcome == "wait"
    assert "2 of 20 failures could not be compared" in transition.reason


def test_challenger_gets_no_users_after_a_passed_shadow_rollout():
    after = assess(make_rollout(settings(strategy="shadow"))).rollout

    assert (after.phase, after.share) == ("awaiting_promotion", 0.0)


@pytest.mark.parametrize(("after_s", "outcome"), [(119, "advance"), (120, "roll_back")])
def test_rollout_that_was_not_checked_in_time_rolls_back(after_s, outcome):
    transition = assess(make_rollout(), after_s=after_s)

    assert transition.outcome == outcome
    if outcome == "roll_back":
        assert "The rollout was not checked for 120 s" in transition.reason


def test_rollout_awaiting_promotion_waits_and_rolls_back_on_harm():
    rollout = assess(last_step()).rollout

    assert assess(rollout, after_s=1e6).outcome == "wait"
    worse = ArmCounts(requests=2000, errors=400, slower=100)
    more = ArmCounts(requests=2000, errors=20, slower=100)
    assert assess(rollout, challenger=worse, production=more).outcome == "roll_back"


@pytest.mark.parametrize("now", [None, "x" * 64])
def test_moved_production_pointer_rolls_back(now):
    transition = assess(make_rollout(), in_production=now)

    assert transition.outcome == "roll_back"
    assert f"is now {'nothing' if now is None else now[:12]}" in transition.reason


def test_clock_set_back_changes_no_durations():
    at = assess(make_rollout(), after_s=40, challenger=ArmCounts(requests=10)).rollout

    back = assess(at, after_s=-3600)
    assert back.outcome == "wait"
    # The shorter time counts, and the sample traffic covers 0 s after the clock was set back.
    assert back.reason == "0 of 60 s have passed."
    again = assess(back.rollout, after_s=19)
    assert again.outcome == "wait"
    assert assess(again.rollout, after_s=1).outcome == "advance"
    time_to_timeout = back.rollout.step_times_out_at - back.rollout.checked_at
    assert time_to_timeout == at.step_times_out_at - at.checked_at


def test_harm_is_detected_if_the_clock_is_set_back():
    assert assess(make_rollout(), after_s=-100, challenger=UNHEALTHY).outcome == "roll_back"


def test_counts_or_verdict_about_another_rollout_are_rejected():
    at = make_rollout()
    of_other = make_traffic_counts(at.model_copy(update={"id": "r2"}), at=at.checked_at)
    with pytest.raises(ContractError, match="must be of rollout r1, got counts of r2"):
        advance(at, of_other, now=at.checked_at, production=at.production)
    with pytest.raises(ContractError, match="candidate must be the candidate of the rollout"):
        assess(at, quality=make_verdict("PROMOTE", candidate="x" * 64))
    with pytest.raises(ContractError, match="reference must be the reference of the rollout"):
        assess(at, quality=make_verdict("PROMOTE", reference="x" * 64))


@pytest.mark.parametrize(
    ("transition_function", "phases"),
    [
        (pause, {"rolling"}),
        (resume, {"paused"}),
        (abort, {"rolling", "paused", "awaiting_promotion"}),
        (promote, {"awaiting_promotion"}),
    ],
)
def test_manual_transition_is_accepted_only_in_its_phases(transition_function, phases):
    for phase in ("rolling", "paused", "awaiting_promotion", "promoted", "rolled_back"):
        at = make_rollout().model_copy(update={"phase": phase})
        if phase in phases:
            after = transition_function(at, now=at.checked_at, **BY)
            assert (after.rollout.revision, after.actor) == (1, "ada")
        else:
            with pytest.raises(ContractError, match=f"is in phase {phase}"):
                transition_function(at, now=at.checked_at, **BY)


@pytest.mark.parametrize("missing", ["actor", "reason"])
def test_actor_and_reason_are_required(missing):
    at = make_rollout()
    with pytest.raises(ContractError, match=missing):
        abort(at, now=at.checked_at, **(BY | {missing: " "}))


def test_transition_round_trips_through_json():
    for transition in (
        assess(make_rollout(), drift=NO_PAIRS),
        assess(make_rollout(), challenger=UNHEALTHY),
    ):
        text = transition.model_dump_json()
        assert Transition.model_validate_json(text).model_dump_json() == text


def random_transition(at: Rollout, rng: np.random.Generator) -> Transition:
    """Return a random manual transition or check, including rare ones."""
    roll = rng.random()
    now = at.checked_at + timedelta(seconds=float(rng.uniform(-30, 130)))
    if roll < 0.1 and at.phase == "rolling":
        return pause(at, now=now, **BY)
    if roll < 0.3 and at.phase == "paused":
        return resume(at, now=now, **BY)
    if roll > 0.98 and not at.is_over:
        return abort(at, now=now, **BY)
    if roll > 0.8 and at.phase == "awaiting_promotion":
        return promote(at, now=now, **BY)
    return assess(
        at,
        after_s=float(rng.uniform(-30, 125)),
        challenger=[HEALTHY, HEALTHY, HEALTHY, HEALTHY, ArmCounts(), UNHEALTHY][rng.integers(6)],
        production=HEALTHY if rng.random() < 0.9 else ArmCounts(),
        epoch=at.epoch if rng.random() < 0.9 else 3,
        quality=None if rng.random() < 0.9 else make_verdict("REJECT" if roll < 0.5 else "PROMOTE"),
        drift=[None, None, None, NEAR, NO_PAIRS][rng.integers(5)],
    )


def test_share_increases_only_by_advance_and_final_phases_do_not_change():
    """ROLL-2: 150 rollouts with random transitions, for every strategy."""
    phases, outcomes = set(), set()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        strategy = ("shadow", "canary", "canary", "blue-green", "ab")[seed % 5]
        at = make_rollout(settings(strategy=strategy, max_step_s=150))
        for _ in range(25):
            before, transition = at, random_transition(at, rng)
            at = transition.rollout
            outcomes.add(transition.outcome)
            phases.add(at.phase)
            assert transition.reason
            if at.share > before.share:
                assert transition.outcome == "advance"
            if before.is_over:
                assert transition.outcome == "wait"
                assert at == before
            changed = served_split(at) != served_split(before)
            assert at.epoch >= before.epoch + (changed and at.phase != "promoted")
            is_waiting = transition.outcome == "wait"
            assert at.revision == before.revision + (not is_waiting)

    assert phases == {"rolling", "paused", "awaiting_promotion", "promoted", "rolled_back"}
    assert outcomes == {
        *("wait", "advance", "inconclusive", "roll_back"),
        *("pause", "resume", "abort", "promote"),
    }


def served_split(at: Rollout) -> tuple[object, ...]:
    split = split_in_force(
        at, production=at.production, pointer_revision=at.pointer_revision, secret="s"
    )
    return split.challenger, split.share, split.shadow


def test_traffic_split_of_a_rollout_has_its_arms_and_lease():
    at = make_rollout()
    split = split_in_force(at, production=at.production, pointer_revision=3, secret="s")

    assert (split.challenger, split.share, split.shadow) == (at.candidate, 0.05, False)
    assert (split.epoch, split.rollout, split.expires_at) == (4, at.id, at.lease_until)


def test_moved_pointer_removes_the_challenger_with_a_higher_epoch():
    at = make_rollout()
    split = split_in_force(at, production="x" * 64, pointer_revision=4, secret="s")

    assert (split.challenger, split.share, split.epoch) == (None, 0.0, 5)
    ended = assess(at, in_production="x" * 64).rollout
    assert split_in_force(ended, production="x" * 64, pointer_revision=4, secret="s").epoch == 6


def test_traffic_split_without_a_rollout_has_only_production():
    split = split_in_force(None, production="x" * 64, pointer_revision=0, secret="s")

    assert (split.production, split.challenger) == ("x" * 64, None)
    assert (split.share, split.epoch) == (0.0, 0)
