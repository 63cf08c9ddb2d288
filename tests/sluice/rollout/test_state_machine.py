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
    SICK,
    look,
    rollout,
    verdict,
    window,
)

BY = {"actor": "ada", "reason": "to see"}
FAR = PredictionDrift(distance=0.6, limit=0.5, rows=400)
NEAR = PredictionDrift(distance=0.4, limit=0.5, rows=400)
UNKNOWN = PredictionDrift(distance=float("nan"), limit=0.5, rows=0)
NOT_A_NUMBER = PredictionDrift(distance=float("nan"), limit=0.5, rows=400)


def settings(**changed: object) -> RolloutSettings:
    return SETTINGS.model_copy(update=changed)


def last_step(**changed: object) -> Rollout:
    at = rollout(settings(**changed))
    return at.model_copy(update={"step": len(at.settings.steps) - 1})


def test_a_healthy_canary_passes_all_steps_and_awaits_promotion():
    at, shares = rollout(), []
    while at.phase == "rolling":
        shares.append(at.share)
        transition = look(at)
        assert transition.outcome == "advance"
        at = transition.rollout

    assert shares == [0.05, 0.25, 0.5, 1.0]
    assert (at.phase, at.share, at.epoch, at.revision) == ("awaiting_promotion", 1.0, 7, 4)
    assert look(at).outcome == "wait"
    assert promote(at, now=at.checked_at, **BY).rollout.phase == "promoted"


def test_harm_rolls_back_immediately_even_before_the_minimum_step_time():
    transition = look(rollout(), after_s=2, challenger=SICK)

    assert (transition.outcome, transition.rollout.phase) == ("roll_back", "rolled_back")
    assert (transition.rollout.share, transition.rollout.epoch) == (0.0, 5)
    assert "200 errors in 1,000 requests of the challenger, 10 in 1,000" in transition.reason
    assert transition.guards[0].verdict == "breach"
    assert transition.remedy


def test_harm_that_begins_in_a_later_step_is_detected():
    second = look(rollout()).rollout

    assert second.step == 1
    assert look(second, after_s=2, challenger=SICK).outcome == "roll_back"


@pytest.mark.parametrize("guard", ["errors", "timeouts", "not_finite", "slower"])
def test_each_guard_detects_its_own_harm(guard):
    sick = ArmCounts(requests=1000, **{guard: 150})
    calm = ArmCounts(requests=1000, **{guard: 10})

    transition = look(rollout(), after_s=2, challenger=sick, production=calm)

    assert transition.outcome == "roll_back"
    assert [r.guard for r in transition.guards if r.verdict == "breach"] == [guard]


@pytest.mark.parametrize(
    ("after_s", "changed", "said"),
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
        (60, {"drift": UNKNOWN}, "is unknown: 0 of 100 requests were answered by both arms"),
        (60, {"drift": NOT_A_NUMBER}, "is unknown: it is not a number on 400 requests."),
        (
            60,
            {"challenger": ArmCounts(requests=1000, errors=34, slower=50)},
            "Guards warn: 34 errors",
        ),
    ],
)
def test_missing_evidence_waits_and_is_named(after_s, changed, said):
    transition = look(rollout(), after_s=after_s, **changed)

    assert transition.outcome == "wait"
    assert said in transition.reason
    assert transition.rollout.revision == 0
    assert transition.rollout.share == 0.05


def test_servers_without_the_challenger_cannot_end_a_step():
    at = rollout()
    now = at.checked_at + timedelta(seconds=60)
    told = {
        "with": window(at, at=now, production=ArmCounts(requests=99, errors=1)),
        "without": window(at, at=now, challenger=ArmCounts()),
    }
    seen = merge_counts(told, rollout=at.id, epoch=at.epoch, since=at.step_since)

    transition = advance(at, seen, now=now, production=PRODUCTION)

    assert seen.production.requests == 1099
    assert transition.reason == (
        "Not enough evidence: 99 of 100 requests of production were counted."
    )
    assert [reading.production for reading in transition.guards] == [1, 0, 0, 0]


def test_silence_is_never_health():
    """ROLL-2: without any traffic the rollout pauses when the step times out, and stays paused."""
    at, outcomes = rollout(), []
    for _ in range(8):
        transition = look(at, after_s=100, challenger=ArmCounts(), production=ArmCounts())
        outcomes.append(transition.outcome)
        at = transition.rollout

    assert outcomes == ["wait"] * 5 + ["inconclusive"] + ["wait"] * 2
    assert (at.phase, at.share) == ("paused", 0.05)


def test_a_paused_rollout_never_advances_and_still_rolls_back():
    paused = pause(rollout(), now=rollout().checked_at, **BY).rollout

    assert look(paused).outcome == "wait"
    assert look(paused, challenger=SICK).outcome == "roll_back"


def test_a_resumed_rollout_has_a_new_timeout_and_the_same_share():
    at = rollout()
    for _ in range(6):
        at = look(at, after_s=100, challenger=ArmCounts()).rollout
    resumed = resume(at, now=at.checked_at, **BY)

    assert (resumed.rollout.phase, resumed.rollout.share) == ("rolling", at.share)
    assert resumed.rollout.epoch == at.epoch
    assert look(resumed.rollout, after_s=100, challenger=ArmCounts()).outcome == "wait"
    assert look(resumed.rollout).outcome == "advance"


def test_prediction_drift_rolls_back():
    assert look(rollout(), after_s=2, drift=FAR).outcome == "roll_back"
    assert look(rollout(), drift=NEAR).outcome == "advance"


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
def test_labels_at_the_last_step(outcome, when_known, required):
    quality = None if outcome is None else verdict(outcome)

    assert look(last_step(), quality=quality).outcome == when_known
    assert look(last_step(quality="required"), quality=quality).outcome == required
    assert look(last_step(strategy="ab"), quality=quality).outcome == required
    if outcome != "REJECT":  # earlier steps do not wait for labels
        assert look(rollout(settings(quality="required")), quality=quality).outcome == "advance"


def test_dropped_shadow_requests_block_a_shadow_step():
    shadow = rollout(settings(strategy="shadow"))

    assert look(shadow, dropped=50).outcome == "advance"
    held = look(shadow, dropped=60)
    assert held.outcome == "wait"
    assert "60 of 1060 shadow requests were dropped" in held.reason


def test_failures_without_a_comparison_block_a_step() -> None:
    """A client that keeps the server busy must not hide the challenger's faults."""
    assert look(rollout(), dropped=1).outcome == "advance", "1 of 20"
    held = look(rollout(), dropped=2)

    assert held.outcome == "wait"
    assert "2 of 20 failures could not be compared" in held.reason


def test_a_passed_shadow_rollout_answers_no_user_until_promoted():
    after = look(rollout(settings(strategy="shadow"))).rollout

    assert (after.phase, after.share) == ("awaiting_promotion", 0.0)


@pytest.mark.parametrize(("after_s", "outcome"), [(119, "advance"), (120, "roll_back")])
def test_an_unchecked_rollout_rolls_back(after_s, outcome):
    transition = look(rollout(), after_s=after_s)

    assert transition.outcome == outcome
    if outcome == "roll_back":
        assert "The rollout was not checked for 120 s" in transition.reason


def test_a_rollout_awaiting_promotion_waits_and_stays_guarded():
    held = look(last_step()).rollout

    assert look(held, after_s=1e6).outcome == "wait"
    worse = ArmCounts(requests=2000, errors=400, slower=100)
    more = ArmCounts(requests=2000, errors=20, slower=100)
    assert look(held, challenger=worse, production=more).outcome == "roll_back"


@pytest.mark.parametrize("now", [None, "x" * 64])
def test_a_pointer_that_was_moved_ends_the_rollout(now):
    transition = look(rollout(), in_production=now)

    assert transition.outcome == "roll_back"
    assert f"is now {'nothing' if now is None else now[:12]}" in transition.reason


def test_a_clock_that_went_back_changes_no_durations():
    at = look(rollout(), after_s=40, challenger=ArmCounts(requests=10)).rollout

    back = look(at, after_s=-3600)
    assert back.outcome == "wait"
    assert "40 of 60 s" in back.reason or "0 of 60 s" in back.reason
    again = look(back.rollout, after_s=19)
    assert again.outcome == "wait"
    assert look(again.rollout, after_s=1).outcome == "advance"
    patience = back.rollout.step_times_out_at - back.rollout.checked_at
    assert patience == at.step_times_out_at - at.checked_at


def test_harm_is_detected_while_the_clock_goes_back():
    assert look(rollout(), after_s=-100, challenger=SICK).outcome == "roll_back"


def test_evidence_about_another_rollout_is_refused():
    at = rollout()
    of_other = window(at.model_copy(update={"id": "r2"}), at=at.checked_at)
    with pytest.raises(ContractError, match="must be of rollout r1, got counts of r2"):
        advance(at, of_other, now=at.checked_at, production=at.production)
    with pytest.raises(ContractError, match="candidate must be that of the rollout"):
        look(at, quality=verdict("PROMOTE", candidate="x" * 64))
    with pytest.raises(ContractError, match="reference must be that of the rollout"):
        look(at, quality=verdict("PROMOTE", reference="x" * 64))


@pytest.mark.parametrize(
    ("act", "phases"),
    [
        (pause, {"rolling"}),
        (resume, {"paused"}),
        (abort, {"rolling", "paused", "awaiting_promotion"}),
        (promote, {"awaiting_promotion"}),
    ],
)
def test_manual_transitions_by_phase(act, phases):
    for phase in ("rolling", "paused", "awaiting_promotion", "promoted", "rolled_back"):
        at = rollout().model_copy(update={"phase": phase})
        if phase in phases:
            after = act(at, now=at.checked_at, **BY)
            assert (after.rollout.revision, after.actor) == (1, "ada")
        else:
            with pytest.raises(ContractError, match=f"is in phase {phase}"):
                act(at, now=at.checked_at, **BY)


@pytest.mark.parametrize("missing", ["actor", "reason"])
def test_actor_and_reason_are_required(missing):
    at = rollout()
    with pytest.raises(ContractError, match=missing):
        abort(at, now=at.checked_at, **(BY | {missing: " "}))


def test_a_transition_survives_serialization():
    for transition in (look(rollout(), drift=UNKNOWN), look(rollout(), challenger=SICK)):
        text = transition.model_dump_json()
        assert Transition.model_validate_json(text).model_dump_json() == text


def random_look(at: Rollout, rng: np.random.Generator) -> Transition:
    """Anything that may happen, the unlikely as well."""
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
    return look(
        at,
        after_s=float(rng.uniform(-30, 125)),
        challenger=[HEALTHY, HEALTHY, HEALTHY, HEALTHY, ArmCounts(), SICK][rng.integers(6)],
        production=HEALTHY if rng.random() < 0.9 else ArmCounts(),
        epoch=at.epoch if rng.random() < 0.9 else 3,
        quality=None if rng.random() < 0.9 else verdict("REJECT" if roll < 0.5 else "PROMOTE"),
        drift=[None, None, None, NEAR, UNKNOWN][rng.integers(5)],
    )


def test_shares_only_increase_by_an_advance_and_final_phases_stay():
    """ROLL-2: 150 random lives of a rollout, every strategy."""
    phases, outcomes = set(), set()
    for life in range(150):
        rng = np.random.default_rng(life)
        strategy = ("shadow", "canary", "canary", "blue-green", "ab")[life % 5]
        at = rollout(settings(strategy=strategy, max_step_s=150))
        for _ in range(25):
            before, transition = at, random_look(at, rng)
            at = transition.rollout
            outcomes.add(transition.outcome)
            phases.add(at.phase)
            assert transition.reason
            if at.share > before.share:
                assert transition.outcome == "advance"
            if before.is_over:
                assert transition.outcome == "wait"
                assert at == before
            changed = served(at) != served(before)
            assert at.epoch >= before.epoch + (changed and at.phase != "promoted")
            hold = transition.outcome == "wait"
            assert at.revision == before.revision + (not hold)

    assert phases == {"rolling", "paused", "awaiting_promotion", "promoted", "rolled_back"}
    assert outcomes == {
        *("wait", "advance", "inconclusive", "roll_back"),
        *("pause", "resume", "abort", "promote"),
    }


def served(at: Rollout) -> tuple[object, ...]:
    found = split_in_force(
        at, production=at.production, pointer_revision=at.pointer_revision, secret="s"
    )
    return found.challenger, found.share, found.shadow


def test_the_split_of_a_rollout_names_its_arms_and_its_lease():
    at = rollout()
    found = split_in_force(at, production=at.production, pointer_revision=3, secret="s")

    assert (found.challenger, found.share, found.shadow) == (at.candidate, 0.05, False)
    assert (found.epoch, found.rollout, found.expires_at) == (4, at.id, at.lease_until)


def test_a_manual_pointer_move_removes_the_challenger_with_a_higher_epoch():
    at = rollout()
    found = split_in_force(at, production="x" * 64, pointer_revision=4, secret="s")

    assert (found.challenger, found.share, found.epoch) == (None, 0.0, 5)
    ended = look(at, in_production="x" * 64).rollout
    assert split_in_force(ended, production="x" * 64, pointer_revision=4, secret="s").epoch == 6


def test_without_a_rollout_production_answers():
    found = split_in_force(None, production="x" * 64, pointer_revision=0, secret="s")

    assert (found.production, found.challenger) == ("x" * 64, None)
    assert (found.share, found.epoch) == (0.0, 0)
