"""The state machine of a rollout, read as its policy (ROLL-1, ROLL-2)."""

from datetime import timedelta

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.rollout.changes import abort, pause, promote, resume
from sluice.rollout.machine import advance
from sluice.rollout.observations import ArmCounts, merge
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import PredictionDrift, Rollout, Transition
from sluice.rollout.weights import weights_of
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


def settings(**changed: object) -> RolloutSettings:
    return SETTINGS.model_copy(update=changed)


def last_step(**changed: object) -> Rollout:
    at = rollout(settings(**changed))
    return at.model_copy(update={"step": len(at.settings.steps) - 1})


def test_a_healthy_canary_goes_through_all_steps_and_is_held():
    at, shares = rollout(), []
    while at.phase == "rolling":
        shares.append(at.share)
        transition = look(at)
        assert transition.outcome == "advance"
        at = transition.rollout

    assert shares == [0.05, 0.25, 0.5, 1.0]
    assert (at.phase, at.share, at.epoch, at.revision) == ("held", 1.0, 7, 4)
    assert look(at).outcome == "hold"
    assert promote(at, now=at.seen_at, **BY).rollout.phase == "promoted"


def test_harm_goes_back_at_once_even_before_the_step_is_long_enough():
    transition = look(rollout(), after_s=2, challenger=SICK)

    assert (transition.outcome, transition.rollout.phase) == ("roll_back", "rolled_back")
    assert (transition.rollout.share, transition.rollout.epoch) == (0.0, 5)
    assert "200 errors in 1000 requests of the challenger, 10 in 1000" in transition.reason
    assert transition.guards[0].verdict == "breach"
    assert transition.remedy


def test_harm_that_begins_with_the_next_step_is_seen_in_its_own_counts():
    second = look(rollout()).rollout

    assert second.step == 1
    assert look(second, after_s=2, challenger=SICK).outcome == "roll_back"


@pytest.mark.parametrize("guard", ["errors", "timeouts", "not_finite", "slower"])
def test_each_guard_finds_its_own_harm(guard):
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
        (60, {"epoch": 3}, "counts are of epoch 3, the weights of epoch 4"),
        (60, {"epoch": 5}, "counts are of epoch 5"),
        (60, {"drift": UNKNOWN}, "is not known: 0 of 100 requests were answered by both"),
        (
            60,
            {"challenger": ArmCounts(requests=1000, errors=34, slower=50)},
            "Not calm: 34 errors",
        ),
    ],
)
def test_what_is_lacking_holds_and_is_named(after_s, changed, said):
    transition = look(rollout(), after_s=after_s, **changed)

    assert transition.outcome == "hold"
    assert said in transition.reason
    assert transition.rollout.revision == 0
    assert transition.rollout.share == 0.05


def test_no_step_ends_on_what_servers_without_the_challenger_answered():
    at = rollout()
    now = at.seen_at + timedelta(seconds=60)
    told = {
        "with": window(at, at=now, production=ArmCounts(requests=99, errors=1)),
        "without": window(at, at=now, challenger=ArmCounts()),
    }
    seen = merge(told, rollout=at.id, epoch=at.epoch, since=at.step_since)

    transition = advance(at, seen, now=now, production=PRODUCTION)

    assert seen.production.requests == 1099
    assert transition.reason == ("Not enough evidence: 99 of 100 requests of production were seen.")
    assert [reading.production for reading in transition.guards] == [1, 0, 0, 0]


def test_silence_is_never_health():
    """ROLL-2: nothing at all is seen; the rollout pauses when patience ends, and stays there."""
    at, outcomes = rollout(), []
    for _ in range(8):
        transition = look(at, after_s=100, challenger=ArmCounts(), production=ArmCounts())
        outcomes.append(transition.outcome)
        at = transition.rollout

    assert outcomes == ["hold"] * 5 + ["inconclusive"] + ["hold"] * 2
    assert (at.phase, at.share) == ("paused", 0.05)


def test_a_paused_rollout_never_ends_a_step_and_still_goes_back():
    paused = pause(rollout(), now=rollout().seen_at, **BY).rollout

    assert look(paused).outcome == "hold"
    assert look(paused, challenger=SICK).outcome == "roll_back"


def test_a_resumed_rollout_has_new_patience_and_the_same_share():
    at = rollout()
    for _ in range(6):
        at = look(at, after_s=100, challenger=ArmCounts()).rollout
    resumed = resume(at, now=at.seen_at, **BY)

    assert (resumed.rollout.phase, resumed.rollout.share) == ("rolling", at.share)
    assert resumed.rollout.epoch == at.epoch
    assert look(resumed.rollout, after_s=100, challenger=ArmCounts()).outcome == "hold"
    assert look(resumed.rollout).outcome == "advance"


def test_drift_of_predictions_goes_back():
    assert look(rollout(), after_s=2, drift=FAR).outcome == "roll_back"
    assert look(rollout(), drift=NEAR).outcome == "advance"


@pytest.mark.parametrize(
    ("outcome", "when_known", "required"),
    [
        (None, "advance", "hold"),
        ("PROMOTE", "advance", "advance"),
        ("EQUIVALENT", "advance", "hold"),
        ("INCONCLUSIVE", "advance", "hold"),
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


def test_dropped_copies_hold_a_shadow_step():
    shadow = rollout(settings(strategy="shadow"))

    assert look(shadow, dropped=50).outcome == "advance"
    held = look(shadow, dropped=60)
    assert held.outcome == "hold"
    assert "60 of 1060 copies found the queue full" in held.reason


def test_failures_that_nobody_compared_let_no_step_end() -> None:
    """Whoever keeps the server busy must not hide what the challenger does meanwhile."""
    assert look(rollout(), dropped=1).outcome == "advance", "1 of 20"
    held = look(rollout(), dropped=2)

    assert held.outcome == "hold"
    assert "2 of 20 failures could not be compared" in held.reason


def test_a_shadow_that_held_answers_nobody_until_it_is_promoted():
    after = look(rollout(settings(strategy="shadow"))).rollout

    assert (after.phase, after.share) == ("held", 0.0)


@pytest.mark.parametrize(("after_s", "outcome"), [(119, "advance"), (120, "roll_back")])
def test_a_rollout_that_nobody_looks_at_goes_back(after_s, outcome):
    transition = look(rollout(), after_s=after_s)

    assert transition.outcome == outcome
    if outcome == "roll_back":
        assert "Nobody looked at it for 120 s" in transition.reason


def test_a_held_rollout_waits_for_its_promotion_however_long_and_is_watched():
    held = look(last_step()).rollout

    assert look(held, after_s=1e6).outcome == "hold"
    worse = ArmCounts(requests=2000, errors=400, slower=100)
    more = ArmCounts(requests=2000, errors=20, slower=100)
    assert look(held, challenger=worse, production=more).outcome == "roll_back"


@pytest.mark.parametrize("now", [None, "x" * 64])
def test_a_pointer_that_was_moved_ends_the_rollout(now):
    transition = look(rollout(), in_production=now)

    assert transition.outcome == "roll_back"
    assert f"is {'nothing' if now is None else now[:12]} now" in transition.reason


def test_a_clock_that_went_back_gives_no_time_and_takes_none():
    at = look(rollout(), after_s=40, challenger=ArmCounts(requests=10)).rollout

    back = look(at, after_s=-3600)
    assert back.outcome == "hold"
    assert "40 of 60 s" in back.reason or "0 of 60 s" in back.reason
    again = look(back.rollout, after_s=19)
    assert again.outcome == "hold"
    assert look(again.rollout, after_s=1).outcome == "advance"
    patience = back.rollout.patience_until - back.rollout.seen_at
    assert patience == at.patience_until - at.seen_at


def test_harm_is_seen_while_the_clock_goes_back():
    assert look(rollout(), after_s=-100, challenger=SICK).outcome == "roll_back"


def test_evidence_about_something_else_is_refused():
    at = rollout()
    of_other = window(at.model_copy(update={"id": "r2"}), at=at.seen_at)
    with pytest.raises(ContractError, match="must be of rollout r1, got one of r2"):
        advance(at, of_other, now=at.seen_at, production=at.production)
    with pytest.raises(ContractError, match="candidate must be the rollout's"):
        look(at, quality=verdict("PROMOTE", candidate="x" * 64))
    with pytest.raises(ContractError, match="reference must be the rollout's"):
        look(at, quality=verdict("PROMOTE", reference="x" * 64))


@pytest.mark.parametrize(
    ("act", "phases"),
    [
        (pause, {"rolling"}),
        (resume, {"paused"}),
        (abort, {"rolling", "paused", "held"}),
        (promote, {"held"}),
    ],
)
def test_what_a_person_may_do_in_which_phase(act, phases):
    for phase in ("rolling", "paused", "held", "promoted", "rolled_back"):
        at = rollout().model_copy(update={"phase": phase})
        if phase in phases:
            after = act(at, now=at.seen_at, **BY)
            assert (after.rollout.revision, after.actor) == (1, "ada")
        else:
            with pytest.raises(ContractError, match=f"is {phase}"):
                act(at, now=at.seen_at, **BY)


@pytest.mark.parametrize("missing", ["actor", "reason"])
def test_who_and_why_are_asked(missing):
    at = rollout()
    with pytest.raises(ContractError, match=missing):
        abort(at, now=at.seen_at, **(BY | {missing: " "}))


def test_a_transition_survives_its_record():
    for transition in (look(rollout(), drift=UNKNOWN), look(rollout(), challenger=SICK)):
        text = transition.model_dump_json()
        assert Transition.model_validate_json(text).model_dump_json() == text


def random_look(at: Rollout, rng: np.random.Generator) -> Transition:
    """Anything that may happen, the unlikely as well."""
    roll = rng.random()
    now = at.seen_at + timedelta(seconds=float(rng.uniform(-30, 130)))
    if roll < 0.1 and at.phase == "rolling":
        return pause(at, now=now, **BY)
    if roll < 0.3 and at.phase == "paused":
        return resume(at, now=now, **BY)
    if roll > 0.98 and not at.is_over:
        return abort(at, now=now, **BY)
    if roll > 0.8 and at.phase == "held":
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


def test_whatever_happens_weights_rise_only_by_an_advance_and_the_end_is_the_end():
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
                assert transition.outcome == "hold"
                assert at == before
            changed = served(at) != served(before)
            assert at.epoch >= before.epoch + (changed and at.phase != "promoted")
            hold = transition.outcome == "hold"
            assert at.revision == before.revision + (not hold)

    assert phases == {"rolling", "paused", "held", "promoted", "rolled_back"}
    assert outcomes == {
        *("hold", "advance", "inconclusive", "roll_back"),
        *("pause", "resume", "abort", "promote"),
    }


def served(at: Rollout) -> tuple[object, ...]:
    found = weights_of(
        at, production=at.production, pointer_revision=at.pointer_revision, secret="s"
    )
    return found.challenger, found.share, found.shadow


def test_weights_of_a_rollout_name_its_arms_and_its_lease():
    at = rollout()
    found = weights_of(at, production=at.production, pointer_revision=3, secret="s")

    assert (found.challenger, found.share, found.shadow) == (at.candidate, 0.05, False)
    assert (found.epoch, found.rollout, found.expires_at) == (4, at.id, at.lease_until)


def test_a_pointer_moved_by_hand_takes_the_challenger_out_with_a_higher_epoch():
    at = rollout()
    found = weights_of(at, production="x" * 64, pointer_revision=4, secret="s")

    assert (found.challenger, found.share, found.epoch) == (None, 0.0, 5)
    ended = look(at, in_production="x" * 64).rollout
    assert weights_of(ended, production="x" * 64, pointer_revision=4, secret="s").epoch == 6


def test_without_a_rollout_production_answers():
    found = weights_of(None, production="x" * 64, pointer_revision=0, secret="s")

    assert (found.production, found.challenger) == ("x" * 64, None)
    assert (found.share, found.epoch) == (0.0, 0)
