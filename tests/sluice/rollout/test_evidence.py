"""Anytime-valid evidence of harm: exact values, supermartingale property, false alarms (ROLL-2)."""

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


def traffic_counts(
    challenger: ArmCounts, production: ArmCounts, *, at_s: float = 2
) -> TrafficCounts:
    until = NOW + timedelta(seconds=at_s)
    return TrafficCounts(
        rollout="r", epoch=1, since=NOW, until=until, production=production, challenger=challenger
    )


def arm_counts(requests: int, errors: int) -> ArmCounts:
    return ArmCounts(requests=requests, errors=errors)


def test_evidence_of_one_update_equals_the_likelihood_ratio():
    """The challenger has 3 of 4 errors and a fifth of the requests."""
    evidence = update_evidence(
        initial_evidence(SETTINGS), traffic_counts(arm_counts(100, 3), arm_counts(400, 1)), SETTINGS
    )

    expected = [0.1 / 2 * r**3 / (1 + (r - 1) / 5) ** 4 for r in (2.5, 6.0)]
    assert evidence.e_value("errors") == pytest.approx(sum(expected))
    # Without slow requests the evidence does not change.
    assert evidence.e_value("slower") == pytest.approx(0.1)


def test_healthy_evidence_is_a_supermartingale_for_any_split():
    """Exact mean over all assignments of the faults to the arms (hypergeometric)."""
    for challenger, production, faults in ((5, 95, 4), (50, 50, 10), (25, 75, 9)):
        mean = 0.0
        for challenger_faults in range(faults + 1):
            ways = math.comb(challenger, challenger_faults) * math.comb(
                production, faults - challenger_faults
            )
            trials = FaultTrials(
                challenger_faults=challenger_faults,
                total_faults=faults,
                challenger_share=challenger / (challenger + production),
            )
            (log,) = update_log_evidence([0.0], [trials], odds_ratios=[4.0], mass=0.0)
            mean += ways / math.comb(challenger + production, faults) * math.exp(log)
        assert 0.1 < mean <= 1 + 1e-12


def test_shadow_requests_never_raise_healthy_evidence_on_average():
    """Both arms get every request; both fail, or one fails with probability 1/2 for each arm."""
    for both_arms, one_arm in ((0, 6), (3, 3), (6, 0)):
        mean = 0.0
        for challenger_faults in range(one_arm + 1):
            trials = FaultTrials(
                challenger_faults=both_arms + challenger_faults,
                total_faults=2 * both_arms + one_arm,
                challenger_share=0.5,
            )
            (log,) = update_log_evidence([0.0], [trials], odds_ratios=[6.0], mass=0.0)
            mean += math.comb(one_arm, challenger_faults) / 2**one_arm * math.exp(log)
        assert mean <= 1 + 1e-12


def test_evidence_does_not_depend_on_the_number_of_checks():
    """The same traffic in 1, 10 and 100 checks, evenly mixed, gives the same evidence."""
    e_values = []
    for num_checks in (1, 10, 100):
        evidence = initial_evidence(SETTINGS)
        for i in range(1, num_checks + 1):
            part = 100 // num_checks * i
            window = traffic_counts(
                arm_counts(20 * part, part), arm_counts(180 * part, 3 * part), at_s=0
            )
            evidence = update_evidence(evidence, window, SETTINGS)
        e_values.append(evidence.e_value("errors"))

    assert e_values == pytest.approx([e_values[0]] * 3)


def test_evidence_increases_with_challenger_errors_and_decreases_with_production_errors():
    def evidence(challenger: int, production: int) -> float:
        return update_evidence(
            initial_evidence(SETTINGS),
            traffic_counts(arm_counts(500, challenger), arm_counts(9500, production)),
            SETTINGS,
        ).e_value("errors")

    by_ours = [evidence(errors, 95) for errors in (0, 5, 10, 20, 40)]
    by_theirs = [evidence(25, errors) for errors in (0, 50, 100, 400)]

    assert all(a < b for a, b in pairwise(by_ours))
    assert all(a > b for a, b in pairwise(by_theirs))


def test_error_rates_that_rise_in_both_arms_are_no_evidence():
    """A tenfold rate in both arms does not change the challenger's share of the faults."""
    evidence = initial_evidence(SETTINGS)
    challenger = production = ArmCounts()
    for i, rate in enumerate((0.01, 0.1, 0.3, 0.1, 0.01)):
        challenger = arm_counts(challenger.requests + 1000, challenger.errors + int(1000 * rate))
        production = arm_counts(production.requests + 9000, production.errors + int(9000 * rate))
        evidence = update_evidence(
            evidence, traffic_counts(challenger, production, at_s=2 * i), SETTINGS
        )

    assert evidence.e_value("errors") < 0.1


def test_evidence_does_not_change_without_traffic():
    evidence = initial_evidence(SETTINGS)
    for hour in range(100):
        evidence = update_evidence(
            evidence, traffic_counts(ArmCounts(), ArmCounts(), at_s=3600 * hour), SETTINGS
        )

    assert [evidence.e_value(guard) for guard in GUARDS] == pytest.approx([0.1] * 4)


def test_step_starts_with_the_evidence_of_the_previous_step():
    before = update_evidence(
        initial_evidence(SETTINGS), traffic_counts(arm_counts(100, 3), arm_counts(400, 1)), SETTINGS
    )

    after = begin_step(before)

    assert after.e_value("errors") == before.e_value("errors")
    assert after.challenger == after.production == ArmCounts()


def test_decreased_counts_reset_the_baseline_and_older_counts_are_ignored():
    first = update_evidence(
        initial_evidence(SETTINGS),
        traffic_counts(arm_counts(100, 3), arm_counts(400, 1), at_s=10),
        SETTINGS,
    )
    lower = arm_counts(50, 1), arm_counts(200, 0)

    reset = update_evidence(first, traffic_counts(*lower, at_s=12), SETTINGS)
    stale = update_evidence(first, traffic_counts(*lower, at_s=8), SETTINGS)

    assert reset.e_value("errors") == first.e_value("errors")
    assert reset.challenger.requests == 50
    assert stale == first


def test_faults_reported_before_their_requests_are_counted_later():
    first = update_evidence(
        initial_evidence(SETTINGS), traffic_counts(arm_counts(100, 0), arm_counts(400, 0)), SETTINGS
    )
    ahead = update_evidence(first, traffic_counts(arm_counts(100, 3), arm_counts(400, 1)), SETTINGS)
    whole = update_evidence(ahead, traffic_counts(arm_counts(200, 3), arm_counts(800, 1)), SETTINGS)

    assert ahead == first
    assert whole.e_value("errors") > 2 * first.e_value("errors")


def test_clock_jump_of_a_year_is_no_evidence():
    first = update_evidence(
        initial_evidence(SETTINGS),
        traffic_counts(arm_counts(100, 1), arm_counts(400, 4), at_s=0),
        SETTINGS,
    )
    later = update_evidence(
        first, traffic_counts(arm_counts(200, 2), arm_counts(800, 8), at_s=3e7), SETTINGS
    )

    assert later.e_value("errors") < 0.2


def merge_servers(
    servers: dict[str, tuple[ArmCounts, ArmCounts]], *, at_s: float = 2
) -> TrafficCounts:
    """Merge the counts of several servers, each as (challenger, production)."""
    counts_by_server = {
        server: traffic_counts(*arms, at_s=at_s) for server, arms in servers.items()
    }
    return merge_counts(counts_by_server, rollout="r", epoch=1, since=NOW)


def test_evidence_of_several_servers_is_the_product_of_likelihood_ratios():
    """Each server has its own challenger share; a server without a challenger adds nothing."""
    window = merge_servers(
        {
            "a": (arm_counts(100, 3), arm_counts(400, 1)),
            "b": (arm_counts(50, 2), arm_counts(50, 4)),
            "without": (arm_counts(0, 0), arm_counts(9000, 500)),
        }
    )

    evidence = update_evidence(initial_evidence(SETTINGS), window, SETTINGS)

    expected = [
        0.1 / 2 * r**3 / (1 + (r - 1) / 5) ** 4 * r**2 / (1 + (r - 1) / 2) ** 6 for r in (2.5, 6.0)
    ]
    assert evidence.e_value("errors") == pytest.approx(sum(expected))
    assert (evidence.challenger, evidence.production) == (arm_counts(150, 5), arm_counts(450, 5))


def test_evidence_of_several_healthy_servers_is_a_supermartingale():
    """Exact mean for two servers with different fault rates and challenger shares."""
    servers = ((5, 95, 4), (50, 50, 9))
    mean = 0.0
    for faults_a in range(servers[0][2] + 1):
        for faults_b in range(servers[1][2] + 1):
            weight, trials = 1.0, []
            for (challenger, production, faults), challenger_faults in zip(
                servers, (faults_a, faults_b), strict=True
            ):
                ways = math.comb(challenger, challenger_faults) * math.comb(
                    production, faults - challenger_faults
                )
                weight *= ways / math.comb(challenger + production, faults)
                trials.append(
                    FaultTrials(
                        challenger_faults=challenger_faults,
                        total_faults=faults,
                        challenger_share=challenger / (challenger + production),
                    )
                )
            (log,) = update_log_evidence([0.0], trials, odds_ratios=[4.0], mass=0.0)
            mean += weight * math.exp(log)

    assert 0.1 < mean <= 1 + 1e-12


def simulate_two_servers(
    seed: int, *, alone: float, production: float, challenger: float, num_checks: int = 60
) -> HarmEvidence:
    """Return evidence of two servers; one has no challenger and the error rate ``alone``."""
    rng = np.random.default_rng(seed)
    evidence = initial_evidence(SETTINGS)
    errors = np.zeros(3, dtype=int)
    for i in range(1, num_checks + 1):
        errors += rng.binomial([100, 25, 25], [alone, production, challenger])
        window = merge_servers(
            {
                "without": (arm_counts(0, 0), arm_counts(100 * i, int(errors[0]))),
                "with": (arm_counts(25 * i, int(errors[2])), arm_counts(25 * i, int(errors[1]))),
            },
            at_s=5 * i,
        )
        evidence = update_evidence(evidence, window, SETTINGS)
    return evidence


def test_server_without_the_challenger_neither_adds_nor_hides_evidence():
    bad_host = [simulate_two_servers(s, alone=0, production=0.2, challenger=0.2) for s in range(8)]
    hidden = [simulate_two_servers(s, alone=0.3, production=0.01, challenger=0.3) for s in range(8)]

    def verdicts(evidences: list[HarmEvidence]) -> set[str]:
        return {read_guards(evidence, SETTINGS)[0].verdict for evidence in evidences}

    assert "breach" not in verdicts(bad_host)
    assert verdicts(hidden) == {"breach"}


@pytest.mark.slow
def test_false_alarm_rate_is_below_alpha_on_unequal_servers():
    """An hour of three servers with different error rates; one gets the challenger later."""
    settings = RolloutSettings(alpha=0.2)
    rate_S, share_S = np.array([0.001, 0.05, 0.2]), np.array([0.05, 0.05, 0.5])
    num_rollouts, num_alarms = 60, 0
    for seed in range(num_rollouts):
        rng = np.random.default_rng(seed)
        evidence = initial_evidence(settings)
        # Rows: challenger requests and errors, production requests and errors.
        totals = np.zeros((4, 3), dtype=int)
        for i in range(1, 181):
            share_now_S = share_S * np.array([i > 90, True, True])
            ours_S = rng.binomial(rng.poisson(100, 3), share_now_S)
            theirs_S = rng.poisson(100, 3)
            totals[0] += ours_S
            totals[1] += rng.binomial(ours_S, rate_S)
            totals[2] += theirs_S
            totals[3] += rng.binomial(theirs_S, rate_S)
            arms = {
                str(s): (arm_counts(*map(int, column[:2])), arm_counts(*map(int, column[2:])))
                for s, column in enumerate(totals.T)
            }
            evidence = update_evidence(evidence, merge_servers(arms, at_s=20 * i), settings)
            if read_guards(evidence, settings)[0].verdict == "breach":
                num_alarms += 1
                break

    # The error guard gets 0.6 of alpha = 20 %: at most 7.2 false alarms in 60 on average.
    assert num_alarms <= 12


def test_totals_stored_without_servers_are_not_counted_again():
    together = BothArms(challenger=arm_counts(100, 20), production=arm_counts(400, 4))
    older = initial_evidence(SETTINGS).model_copy(
        update={"challenger": together.challenger, "production": together.production}
    )
    older = HarmEvidence.model_validate_json(older.model_dump_json(exclude={"servers"}))
    servers = {"a": (together.challenger, together.production)}

    first = update_evidence(older, merge_servers(servers), SETTINGS)
    grown = update_evidence(
        first, merge_servers({"a": (arm_counts(200, 40), arm_counts(800, 8))}, at_s=4), SETTINGS
    )

    assert first.log_evidence == older.log_evidence
    assert grown.e_value("errors") > first.e_value("errors")


def test_limits_of_the_guards_share_alpha():
    readings = read_guards(initial_evidence(SETTINGS), SETTINGS)

    assert sum(1 / reading.limit for reading in readings) == pytest.approx(SETTINGS.alpha)
    assert {reading.verdict for reading in readings} == {"ok"}


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [(9.9, "ok"), (10.1, "warn"), (166, "warn"), (167, "breach"), (math.nan, "warn")],
)
def test_verdict_of_a_reading_depends_on_its_evidence(evidence, verdict):
    logs = initial_evidence(SETTINGS).log_evidence | {"errors": (math.log(evidence), -math.inf)}
    state = initial_evidence(SETTINGS).model_copy(update={"log_evidence": logs})

    assert read_guards(state, SETTINGS)[0].verdict == verdict


def test_evidence_stays_finite_and_can_increase_after_a_long_decrease():
    rng = np.random.default_rng(1)
    evidence = initial_evidence(SETTINGS)
    challenger = production = ArmCounts()
    for at in range(1000):
        challenger = arm_counts(
            challenger.requests + 100, challenger.errors + int(rng.integers(1, 3))
        )
        production = arm_counts(production.requests + 100, production.errors + 100)
        evidence = update_evidence(
            evidence, traffic_counts(challenger, production, at_s=at), SETTINGS
        )
    low = evidence.e_value("errors")
    for at in range(1000, 1010):
        challenger = arm_counts(challenger.requests + 100, challenger.errors + 100)
        production = arm_counts(production.requests + 100, production.errors)
        evidence = update_evidence(
            evidence, traffic_counts(challenger, production, at_s=at), SETTINGS
        )

    assert low < 0.01
    assert evidence.e_value("errors") > 1e9
