"""Always-valid evidence: known answers, an exact oracle, and what looking often does (ROLL-2)."""

import math
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from sluice.rollout.evidence import GUARDS, fold, next_step, no_evidence, update
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import ArmCounts, Window
from sluice.rollout.settings import RolloutSettings
from tests.sluice.rollout.rollout_samples import NOW

SETTINGS = RolloutSettings()


def seen(challenger: ArmCounts, production: ArmCounts, *, at_s: float = 2) -> Window:
    until = NOW + timedelta(seconds=at_s)
    return Window(
        rollout="r", epoch=1, since=NOW, until=until, production=production, challenger=challenger
    )


def counts(requests: int, errors: int) -> ArmCounts:
    return ArmCounts(requests=requests, errors=errors)


def test_known_answer_of_one_look():
    """3 of 4 errors are the challenger's, which had a fifth of the requests."""
    found = fold(no_evidence(SETTINGS), seen(counts(100, 3), counts(400, 1)), SETTINGS)

    by_hand = [0.1 / 2 * r**3 / (1 + (r - 1) / 5) ** 4 for r in (2.5, 6.0)]
    assert found.of("errors") == pytest.approx(sum(by_hand))
    assert found.of("slower") == pytest.approx(0.1)  # nothing was slow: nothing was learnt


def test_healthy_evidence_is_at_most_what_it_was_on_average_whatever_the_split():
    """Exact, over all ways to give the bad ones to the arms: hypergeometric, as routing is."""
    for ours, theirs, bad in ((5, 95, 4), (50, 50, 10), (25, 75, 9)):
        mean = 0.0
        for of_ours in range(bad + 1):
            ways = math.comb(ours, of_ours) * math.comb(theirs, bad - of_ours)
            chance = ours / (ours + theirs)
            (log,) = update([0.0], bad=of_ours, of=bad, chance=chance, ratios=[4.0], mass=0.0)
            mean += ways / math.comb(ours + theirs, bad) * math.exp(log)
        assert 0.1 < mean <= 1 + 1e-12


def test_copies_never_raise_healthy_evidence_on_average():
    """Both arms get every request: they fail together, or one of them alone by a fair coin."""
    for together, alone in ((0, 6), (3, 3), (6, 0)):
        mean = 0.0
        for of_ours in range(alone + 1):
            (log,) = update(
                [0.0],
                bad=together + of_ours,
                of=2 * together + alone,
                chance=0.5,
                ratios=[6.0],
                mass=0.0,
            )
            mean += math.comb(alone, of_ours) / 2**alone * math.exp(log)
        assert mean <= 1 + 1e-12


def test_how_often_one_looks_changes_nothing_but_the_bets_on_a_later_start():
    """The same traffic in 1, 10 and 100 looks, evenly mixed: the evidence is the same."""
    found = []
    for looks in (1, 10, 100):
        evidence = no_evidence(SETTINGS)
        for i in range(1, looks + 1):
            part = 100 // looks * i
            window = seen(counts(20 * part, part), counts(180 * part, 3 * part), at_s=0)
            evidence = fold(evidence, window, SETTINGS)
        found.append(evidence.of("errors"))

    assert found == pytest.approx([found[0]] * 3)


def test_more_errors_of_the_challenger_are_more_evidence_and_of_production_less():
    def evidence(ours: int, theirs: int) -> float:
        return fold(
            no_evidence(SETTINGS), seen(counts(500, ours), counts(9500, theirs)), SETTINGS
        ).of("errors")

    by_ours = [evidence(errors, 95) for errors in (0, 5, 10, 20, 40)]
    by_theirs = [evidence(25, errors) for errors in (0, 50, 100, 400)]

    assert all(a < b for a, b in pairwise(by_ours))
    assert all(a > b for a, b in pairwise(by_theirs))


def test_a_bad_hour_of_both_arms_is_no_evidence():
    """Rates that rise tenfold in both arms leave the challenger's share of the bad ones as is."""
    evidence = no_evidence(SETTINGS)
    ours = theirs = ArmCounts()
    for i, rate in enumerate((0.01, 0.1, 0.3, 0.1, 0.01)):
        ours = counts(ours.requests + 1000, ours.errors + int(1000 * rate))
        theirs = counts(theirs.requests + 9000, theirs.errors + int(9000 * rate))
        evidence = fold(evidence, seen(ours, theirs, at_s=2 * i), SETTINGS)

    assert evidence.of("errors") < 0.1


def test_no_traffic_is_no_evidence_for_days():
    evidence = no_evidence(SETTINGS)
    for hour in range(100):
        evidence = fold(evidence, seen(ArmCounts(), ArmCounts(), at_s=3600 * hour), SETTINGS)

    assert [evidence.of(guard) for guard in GUARDS] == pytest.approx([0.1] * 4)


def test_a_step_goes_on_with_the_evidence_of_the_last_one():
    before = fold(no_evidence(SETTINGS), seen(counts(100, 3), counts(400, 1)), SETTINGS)

    after = next_step(before)

    assert after.of("errors") == before.of("errors")
    assert after.challenger == after.production == ArmCounts()


def test_counts_that_went_back_are_a_new_beginning_and_old_windows_are_passed_over():
    first = fold(no_evidence(SETTINGS), seen(counts(100, 3), counts(400, 1), at_s=10), SETTINGS)
    lower = counts(50, 1), counts(200, 0)

    reset = fold(first, seen(*lower, at_s=12), SETTINGS)
    stale = fold(first, seen(*lower, at_s=8), SETTINGS)

    assert reset.of("errors") == first.of("errors")
    assert reset.challenger.requests == 50
    assert stale == first


def test_bad_answers_ahead_of_their_requests_wait_and_are_not_lost():
    first = fold(no_evidence(SETTINGS), seen(counts(100, 0), counts(400, 0)), SETTINGS)
    ahead = fold(first, seen(counts(100, 3), counts(400, 1)), SETTINGS)
    whole = fold(ahead, seen(counts(200, 3), counts(800, 1)), SETTINGS)

    assert ahead == first
    assert whole.of("errors") > 2 * first.of("errors")


def test_a_clock_that_jumped_a_year_is_no_evidence():
    first = fold(no_evidence(SETTINGS), seen(counts(100, 1), counts(400, 4), at_s=0), SETTINGS)
    later = fold(first, seen(counts(200, 2), counts(800, 8), at_s=3e7), SETTINGS)

    assert later.of("errors") < 0.2


def test_guards_share_alpha_and_a_breach_is_above_a_part_of_it():
    readings = read_guards(no_evidence(SETTINGS), SETTINGS)

    assert sum(1 / reading.limit for reading in readings) == pytest.approx(SETTINGS.alpha)
    assert {reading.verdict for reading in readings} == {"calm"}


@pytest.mark.parametrize(
    ("evidence", "word"),
    [(9.9, "calm"), (10.1, "suspect"), (166, "suspect"), (167, "breach"), (math.nan, "suspect")],
)
def test_the_words_for_evidence(evidence, word):
    logs = no_evidence(SETTINGS).log_evidence | {"errors": (math.log(evidence), -math.inf)}
    state = no_evidence(SETTINGS).model_copy(update={"log_evidence": logs})

    assert read_guards(state, SETTINGS)[0].verdict == word


def test_evidence_never_overflows_nor_forgets_to_rise_again():
    rng = np.random.default_rng(1)
    evidence = no_evidence(SETTINGS)
    ours = theirs = ArmCounts()
    for at in range(1000):
        ours = counts(ours.requests + 100, ours.errors + int(rng.integers(1, 3)))
        theirs = counts(theirs.requests + 100, theirs.errors + 100)
        evidence = fold(evidence, seen(ours, theirs, at_s=at), SETTINGS)
    low = evidence.of("errors")
    for at in range(1000, 1010):
        ours = counts(ours.requests + 100, ours.errors + 100)
        theirs = counts(theirs.requests + 100, theirs.errors)
        evidence = fold(evidence, seen(ours, theirs, at_s=at), SETTINGS)

    assert low < 0.01
    assert evidence.of("errors") > 1e9
