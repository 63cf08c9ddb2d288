"""Anytime-valid evidence: known answers, an exact oracle, and repeated checks (ROLL-2)."""

import math
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from sluice.rollout.evidence import (
    GUARDS,
    FaultTrials,
    HarmEvidence,
    begin_step,
    initial_evidence,
    update_evidence,
    update_log_evidence,
)
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import ArmCounts, BothArms, TrafficCounts, merge_counts
from sluice.rollout.settings import RolloutSettings
from tests.sluice.rollout.rollout_samples import NOW

SETTINGS = RolloutSettings()


def seen(challenger: ArmCounts, production: ArmCounts, *, at_s: float = 2) -> TrafficCounts:
    until = NOW + timedelta(seconds=at_s)
    return TrafficCounts(
        rollout="r", epoch=1, since=NOW, until=until, production=production, challenger=challenger
    )


def counts(requests: int, errors: int) -> ArmCounts:
    return ArmCounts(requests=requests, errors=errors)


def test_known_answer_of_one_update():
    """3 of 4 errors are the challenger's, which had a fifth of the requests."""
    found = update_evidence(
        initial_evidence(SETTINGS), seen(counts(100, 3), counts(400, 1)), SETTINGS
    )

    by_hand = [0.1 / 2 * r**3 / (1 + (r - 1) / 5) ** 4 for r in (2.5, 6.0)]
    assert found.e_value("errors") == pytest.approx(sum(by_hand))
    assert found.e_value("slower") == pytest.approx(0.1)  # nothing was slow: nothing was learnt


def test_healthy_evidence_is_a_supermartingale_for_any_split():
    """Exact, over all ways to give the bad ones to the arms: hypergeometric, as routing is."""
    for ours, theirs, bad in ((5, 95, 4), (50, 50, 10), (25, 75, 9)):
        mean = 0.0
        for of_ours in range(bad + 1):
            ways = math.comb(ours, of_ours) * math.comb(theirs, bad - of_ours)
            chance = ours / (ours + theirs)
            trials = FaultTrials(
                challenger_faults=of_ours, total_faults=bad, challenger_share=chance
            )
            (log,) = update_log_evidence([0.0], [trials], odds_ratios=[4.0], mass=0.0)
            mean += ways / math.comb(ours + theirs, bad) * math.exp(log)
        assert 0.1 < mean <= 1 + 1e-12


def test_shadow_requests_never_raise_healthy_evidence_on_average():
    """Both arms get every request: they fail together, or one of them alone by a fair coin."""
    for together, alone in ((0, 6), (3, 3), (6, 0)):
        mean = 0.0
        for of_ours in range(alone + 1):
            trials = FaultTrials(
                challenger_faults=together + of_ours,
                total_faults=2 * together + alone,
                challenger_share=0.5,
            )
            (log,) = update_log_evidence([0.0], [trials], odds_ratios=[6.0], mass=0.0)
            mean += math.comb(alone, of_ours) / 2**alone * math.exp(log)
        assert mean <= 1 + 1e-12


def test_the_check_frequency_only_affects_the_bets_on_a_later_start():
    """The same traffic in 1, 10 and 100 checks, evenly mixed, gives the same evidence."""
    found = []
    for looks in (1, 10, 100):
        evidence = initial_evidence(SETTINGS)
        for i in range(1, looks + 1):
            part = 100 // looks * i
            window = seen(counts(20 * part, part), counts(180 * part, 3 * part), at_s=0)
            evidence = update_evidence(evidence, window, SETTINGS)
        found.append(evidence.e_value("errors"))

    assert found == pytest.approx([found[0]] * 3)


def test_more_errors_of_the_challenger_are_more_evidence_and_of_production_less():
    def evidence(ours: int, theirs: int) -> float:
        return update_evidence(
            initial_evidence(SETTINGS), seen(counts(500, ours), counts(9500, theirs)), SETTINGS
        ).e_value("errors")

    by_ours = [evidence(errors, 95) for errors in (0, 5, 10, 20, 40)]
    by_theirs = [evidence(25, errors) for errors in (0, 50, 100, 400)]

    assert all(a < b for a, b in pairwise(by_ours))
    assert all(a > b for a, b in pairwise(by_theirs))


def test_faults_of_both_arms_in_a_bad_hour_are_no_evidence():
    """Rates that rise tenfold in both arms do not change the challenger's share of the faults."""
    evidence = initial_evidence(SETTINGS)
    ours = theirs = ArmCounts()
    for i, rate in enumerate((0.01, 0.1, 0.3, 0.1, 0.01)):
        ours = counts(ours.requests + 1000, ours.errors + int(1000 * rate))
        theirs = counts(theirs.requests + 9000, theirs.errors + int(9000 * rate))
        evidence = update_evidence(evidence, seen(ours, theirs, at_s=2 * i), SETTINGS)

    assert evidence.e_value("errors") < 0.1


def test_no_traffic_is_no_evidence_for_days():
    evidence = initial_evidence(SETTINGS)
    for hour in range(100):
        evidence = update_evidence(
            evidence, seen(ArmCounts(), ArmCounts(), at_s=3600 * hour), SETTINGS
        )

    assert [evidence.e_value(guard) for guard in GUARDS] == pytest.approx([0.1] * 4)


def test_a_step_continues_with_the_evidence_of_the_last_one():
    before = update_evidence(
        initial_evidence(SETTINGS), seen(counts(100, 3), counts(400, 1)), SETTINGS
    )

    after = begin_step(before)

    assert after.e_value("errors") == before.e_value("errors")
    assert after.challenger == after.production == ArmCounts()


def test_decreased_counts_reset_the_baseline_and_old_windows_are_ignored():
    first = update_evidence(
        initial_evidence(SETTINGS), seen(counts(100, 3), counts(400, 1), at_s=10), SETTINGS
    )
    lower = counts(50, 1), counts(200, 0)

    reset = update_evidence(first, seen(*lower, at_s=12), SETTINGS)
    stale = update_evidence(first, seen(*lower, at_s=8), SETTINGS)

    assert reset.e_value("errors") == first.e_value("errors")
    assert reset.challenger.requests == 50
    assert stale == first


def test_faults_ahead_of_their_requests_wait_and_are_not_lost():
    first = update_evidence(
        initial_evidence(SETTINGS), seen(counts(100, 0), counts(400, 0)), SETTINGS
    )
    ahead = update_evidence(first, seen(counts(100, 3), counts(400, 1)), SETTINGS)
    whole = update_evidence(ahead, seen(counts(200, 3), counts(800, 1)), SETTINGS)

    assert ahead == first
    assert whole.e_value("errors") > 2 * first.e_value("errors")


def test_a_clock_that_jumped_a_year_is_no_evidence():
    first = update_evidence(
        initial_evidence(SETTINGS), seen(counts(100, 1), counts(400, 4), at_s=0), SETTINGS
    )
    later = update_evidence(first, seen(counts(200, 2), counts(800, 8), at_s=3e7), SETTINGS)

    assert later.e_value("errors") < 0.2


def several(servers: dict[str, tuple[ArmCounts, ArmCounts]], *, at_s: float = 2) -> TrafficCounts:
    """Counts of several servers, each the challenger's and production's."""
    told = {server: seen(*arms, at_s=at_s) for server, arms in servers.items()}
    return merge_counts(told, rollout="r", epoch=1, since=NOW)


def test_known_answer_of_several_servers():
    """Each has its own share of the challenger; the likelihood ratios multiply."""
    window = several(
        {
            "a": (counts(100, 3), counts(400, 1)),
            "b": (counts(50, 2), counts(50, 4)),
            "without": (counts(0, 0), counts(9000, 500)),
        }
    )

    found = update_evidence(initial_evidence(SETTINGS), window, SETTINGS)

    by_hand = [
        0.1 / 2 * r**3 / (1 + (r - 1) / 5) ** 4 * r**2 / (1 + (r - 1) / 2) ** 6 for r in (2.5, 6.0)
    ]
    assert found.e_value("errors") == pytest.approx(sum(by_hand))
    assert (found.challenger, found.production) == (counts(150, 5), counts(450, 5))


def test_evidence_of_several_healthy_servers_is_a_supermartingale():
    """Exact, of two whose rates and shares have nothing in common."""
    servers = ((5, 95, 4), (50, 50, 9))
    mean = 0.0
    for ours_a in range(servers[0][2] + 1):
        for ours_b in range(servers[1][2] + 1):
            weight, trials = 1.0, []
            for (ours, theirs, bad), of_ours in zip(servers, (ours_a, ours_b), strict=True):
                ways = math.comb(ours, of_ours) * math.comb(theirs, bad - of_ours)
                weight *= ways / math.comb(ours + theirs, bad)
                trials.append(
                    FaultTrials(
                        challenger_faults=of_ours,
                        total_faults=bad,
                        challenger_share=ours / (ours + theirs),
                    )
                )
            (log,) = update_log_evidence([0.0], trials, odds_ratios=[4.0], mass=0.0)
            mean += weight * math.exp(log)

    assert 0.1 < mean <= 1 + 1e-12


def two_servers(
    seed: int, *, alone: float, production: float, challenger: float, looks: int = 60
) -> HarmEvidence:
    """Return the evidence where one server has no challenger, and its own rate of errors."""
    rng = np.random.default_rng(seed)
    evidence = initial_evidence(SETTINGS)
    errors = np.zeros(3, dtype=int)
    for i in range(1, looks + 1):
        errors += rng.binomial([100, 25, 25], [alone, production, challenger])
        window = several(
            {
                "without": (counts(0, 0), counts(100 * i, int(errors[0]))),
                "with": (counts(25 * i, int(errors[2])), counts(25 * i, int(errors[1]))),
            },
            at_s=5 * i,
        )
        evidence = update_evidence(evidence, window, SETTINGS)
    return evidence


def test_a_server_without_the_challenger_adds_no_evidence_and_hides_none():
    bad_host = [two_servers(s, alone=0, production=0.2, challenger=0.2) for s in range(8)]
    hidden = [two_servers(s, alone=0.3, production=0.01, challenger=0.3) for s in range(8)]

    def verdicts(found: list[HarmEvidence]) -> set[str]:
        return {read_guards(evidence, SETTINGS)[0].verdict for evidence in found}

    assert "breach" not in verdicts(bad_host)
    assert verdicts(hidden) == {"breach"}


@pytest.mark.slow
def test_the_false_alarm_rate_holds_on_unequal_servers():
    """An hour of three servers with other rates, one of which gets the challenger late."""
    settings = RolloutSettings(alpha=0.2)
    rate_S, share_S = np.array([0.001, 0.05, 0.2]), np.array([0.05, 0.05, 0.5])
    rounds, broken = 60, 0
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        evidence = initial_evidence(settings)
        counted = np.zeros((4, 3), dtype=int)  # requests and errors of the challenger, production's
        for i in range(1, 181):
            share_now_S = share_S * np.array([i > 90, True, True])
            ours_S = rng.binomial(rng.poisson(100, 3), share_now_S)
            theirs_S = rng.poisson(100, 3)
            counted[0] += ours_S
            counted[1] += rng.binomial(ours_S, rate_S)
            counted[2] += theirs_S
            counted[3] += rng.binomial(theirs_S, rate_S)
            arms = {
                str(s): (counts(*map(int, column[:2])), counts(*map(int, column[2:])))
                for s, column in enumerate(counted.T)
            }
            evidence = update_evidence(evidence, several(arms, at_s=20 * i), settings)
            if read_guards(evidence, settings)[0].verdict == "breach":
                broken += 1
                break

    # Of 60 the guard of errors may break 0.6 * 20 %, that is 7.2 on average.
    assert broken <= 12


def test_a_sum_stored_by_an_older_sluice_is_not_counted_again():
    together = BothArms(challenger=counts(100, 20), production=counts(400, 4))
    older = initial_evidence(SETTINGS).model_copy(
        update={"challenger": together.challenger, "production": together.production}
    )
    older = HarmEvidence.model_validate_json(older.model_dump_json(exclude={"servers"}))
    servers = {"a": (together.challenger, together.production)}

    first = update_evidence(older, several(servers), SETTINGS)
    grown = update_evidence(
        first, several({"a": (counts(200, 40), counts(800, 8))}, at_s=4), SETTINGS
    )

    assert first.log_evidence == older.log_evidence
    assert grown.e_value("errors") > first.e_value("errors")


def test_guards_share_alpha_and_a_breach_is_above_a_part_of_it():
    readings = read_guards(initial_evidence(SETTINGS), SETTINGS)

    assert sum(1 / reading.limit for reading in readings) == pytest.approx(SETTINGS.alpha)
    assert {reading.verdict for reading in readings} == {"ok"}


@pytest.mark.parametrize(
    ("evidence", "word"),
    [(9.9, "ok"), (10.1, "warn"), (166, "warn"), (167, "breach"), (math.nan, "warn")],
)
def test_the_text_of_a_reading(evidence, word):
    logs = initial_evidence(SETTINGS).log_evidence | {"errors": (math.log(evidence), -math.inf)}
    state = initial_evidence(SETTINGS).model_copy(update={"log_evidence": logs})

    assert read_guards(state, SETTINGS)[0].verdict == word


def test_evidence_never_overflows_and_can_rise_again():
    rng = np.random.default_rng(1)
    evidence = initial_evidence(SETTINGS)
    ours = theirs = ArmCounts()
    for at in range(1000):
        ours = counts(ours.requests + 100, ours.errors + int(rng.integers(1, 3)))
        theirs = counts(theirs.requests + 100, theirs.errors + 100)
        evidence = update_evidence(evidence, seen(ours, theirs, at_s=at), SETTINGS)
    low = evidence.e_value("errors")
    for at in range(1000, 1010):
        ours = counts(ours.requests + 100, ours.errors + 100)
        theirs = counts(theirs.requests + 100, theirs.errors)
        evidence = update_evidence(evidence, seen(ours, theirs, at_s=at), SETTINGS)

    assert low < 0.01
    assert evidence.e_value("errors") > 1e9
