"""Anytime-valid evidence that the challenger is worse: one e-process for each guard.

If the arms are equally good, a faulty response is the challenger's with a probability that equals
the challenger's share of the requests. This holds even while both arms have many faults. So the
test compares the challenger's share of all faulty responses with this probability, and not the
fault rates. Each server is tested separately: servers differ in load, and some have no challenger.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from sluice.base.settings import Record
from sluice.rollout.observations import ArmCounts, BothArms, TrafficCounts
from sluice.rollout.settings import RolloutSettings

GuardName = Literal["errors", "timeouts", "not_finite", "slower"]
"""Fault that a guard counts: errors, timeouts, non-finite predictions ("not_finite"), or responses
slower than the latency limit, which follows from production's p95 ("slower")."""
GUARDS: tuple[GuardName, ...] = get_args(GuardName)
_HOUR_S = 3600.0


class HarmEvidence(Record):
    """Counts and evidence of a rollout so far, from which a restarted controller continues."""

    until: datetime | None = Field(
        None, description="Time of the counts at the last check; None before the first check."
    )
    production: ArmCounts = Field(
        ArmCounts(),
        description="Production's evidence counts in this step at the last check: the sum over "
        "the servers on which the challenger got requests.",
    )
    challenger: ArmCounts = Field(
        ArmCounts(),
        description="The challenger's evidence counts in this step at the last check: the sum over "
        "the servers on which it got requests.",
    )
    servers: dict[str, BothArms] = Field(
        default_factory=dict, description="Counts of each server in this step at the last check."
    )
    log_evidence: dict[GuardName, tuple[float, ...]] = Field(
        description="Natural logarithm of each guard's evidence, one value per ratio in "
        "odds_ratios."
    )

    def e_value(self, guard: GuardName) -> float:
        """Return the e-value of one guard, summed over all odds ratios."""
        # exp overflows above 709.
        return math.fsum(math.exp(min(log, 700.0)) for log in self.log_evidence[guard])

    @property
    def arms_by_server(self) -> Mapping[str, BothArms]:
        """Counts of each server.

        Older versions of Sluice stored only the sum of all servers, which has the name "" here.
        """
        combined = BothArms(production=self.production, challenger=self.challenger)
        return self.servers or {"": combined}


class FaultTrials(NamedTuple):
    """Faulty responses of one server's arms since the last check, as binomial trials."""

    challenger_faults: int
    """Number of faulty responses of the challenger."""

    total_faults: int
    """Number of faulty responses of both arms."""

    challenger_share: float
    """Challenger's share of the requests of both arms: the maximum probability that a fault is the
    challenger's if the challenger is healthy."""


def initial_evidence(settings: RolloutSettings) -> HarmEvidence:
    """Return the evidence of a rollout before its first request."""
    log_evidence = tuple(
        math.log(settings.initial_alpha_share / len(settings.odds_ratios))
        for _ in settings.odds_ratios
    )
    return HarmEvidence(log_evidence=dict.fromkeys(GUARDS, log_evidence))


def begin_step(evidence: HarmEvidence) -> HarmEvidence:
    """Return the evidence at the start of the next step: the counts restart at 0."""
    return HarmEvidence(until=evidence.until, log_evidence=evidence.log_evidence)


def update_evidence(
    evidence: HarmEvidence, traffic: TrafficCounts, settings: RolloutSettings
) -> HarmEvidence:
    """Return the evidence updated with the counts of one more check.

    Only the increase of the counts since the last check is used, so no request counts twice.
    Exceptions:

    - A count has decreased, and ``traffic`` is older than the last check: the evidence stays.
    - A count has decreased for another reason, such as a restarted counter: the new counts add no
      evidence, and the next increase is computed from them.
    - Faults have increased by more than requests: the counts are incomplete, and the increase is
      left for the next check.

    Args:
        evidence: Evidence after the last check.
        traffic: Counts of this step up to now.
        settings: Settings of the rollout.
    """
    old_arms_by_server, new_arms_by_server = evidence.arms_by_server, traffic.arms_by_server
    if not all(
        _is_monotone(arms, new_arms_by_server.get(server, BothArms()))
        for server, arms in old_arms_by_server.items()
    ):
        is_stale = evidence.until is not None and traffic.until < evidence.until
        return evidence if is_stale else _evidence_at(traffic, evidence.log_evidence)
    increases = [
        _subtract_arms(arms, old_arms_by_server.get(server, BothArms()))
        for server, arms in new_arms_by_server.items()
    ]
    complete_increases = [arms for arms in increases if arms is not None]
    if len(complete_increases) < len(increases):
        return evidence
    mass = _added_mass(evidence.until, traffic.until, settings)
    log_evidence = {
        guard: update_log_evidence(
            evidence.log_evidence[guard],
            [_trials(arms, guard) for arms in complete_increases],
            odds_ratios=settings.odds_ratios,
            mass=mass,
        )
        for guard in GUARDS
    }
    return _evidence_at(traffic, log_evidence)


def update_log_evidence(
    log_evidence: Sequence[float],
    server_trials: Sequence[FaultTrials],
    *,
    odds_ratios: Sequence[float],
    mass: float,
) -> tuple[float, ...]:
    """Return the logarithms of the evidence after more faulty responses.

    A trial is a faulty response of either arm. It is a success if it is a response of the
    challenger. For each odds ratio r and each server, the evidence is multiplied by a likelihood
    ratio: the likelihood under a binomial distribution with the odds multiplied by r, divided by
    the likelihood under Binomial(total_faults, challenger_share). If a fault is the challenger's
    with probability at most ``challenger_share``, the expectation of this ratio is at most 1. So
    the evidence is a test supermartingale, and so is the product over servers, because they route
    independently. The ratio of a server without the challenger is 1.

    ``mass`` is added before each check with a fault. It is a bet that the harm begins at this
    moment. The initial evidence and the masses of one hour sum to at most 1, which bounds the
    expectation of the evidence in a healthy hour. By Doob's inequality, the evidence exceeds
    1 / alpha within this hour with probability at most alpha, even if it is checked often.

    Args:
        log_evidence: Logarithm of the evidence for each odds ratio.
        server_trials: Trials of each server. Without any fault the evidence does not change.
        odds_ratios: Odds ratios of the alternatives.
        mass: Evidence added before this check, for all odds ratios together.

    Assumes:
        Requests are routed to the arms at random, independently of their outcome. Then the
        challenger's faults on a server have a hypergeometric distribution, given the requests per
        arm and the total faults, even if the fault rate changed meanwhile. Convex functions have
        at most the expectation that they have under the binomial distribution (Hoeffding), so the
        binomial distribution is conservative. With shadow traffic both arms get every request, and
        a fault of only one arm is equally likely on either arm. Clients that know their arm and
        attack it violate this assumption. Therefore faults that both arms have are excluded, and
        the faults of one client count up to a limit only (``EvidenceCounts``).

    Source:
        Ville (1939); Hoeffding (1963), JASA 58(301), theorem 4; Ramdas, Gruenwald, Vovk & Shafer
        (2023), Statistical Science 38(4); for evidence that restarts continually: Shin, Ramdas &
        Rinaldo (2024), E-detectors, New England Journal of Statistics in Data Science.
    """
    if not any(trials.total_faults for trials in server_trials):
        return tuple(log_evidence)
    mass_per_ratio = mass / len(odds_ratios)
    return tuple(
        _log_sum(log, mass_per_ratio)
        + math.fsum(_log_likelihood_ratio(trials, ratio) for trials in server_trials)
        for log, ratio in zip(log_evidence, odds_ratios, strict=True)
    )


def _log_likelihood_ratio(trials: FaultTrials, odds_ratio: float) -> float:
    return trials.challenger_faults * math.log(odds_ratio) - trials.total_faults * math.log1p(
        (odds_ratio - 1) * trials.challenger_share
    )


def _trials(increase: BothArms, guard: GuardName) -> FaultTrials:
    challenger, production = increase.evidence.challenger, increase.evidence.production
    num_requests = challenger.requests + production.requests
    return FaultTrials(
        challenger_faults=getattr(challenger, guard),
        total_faults=getattr(challenger, guard) + getattr(production, guard),
        challenger_share=challenger.requests / num_requests if num_requests else 0.0,
    )


def _added_mass(
    last_check_at: datetime | None, checked_at: datetime, settings: RolloutSettings
) -> float:
    """Return the evidence to add for harm that began since the last check.

    The elapsed time is limited to the lease, so that a clock that jumps forward adds little.
    """
    if last_check_at is None:
        return 0.0
    elapsed_s = min(max((checked_at - last_check_at).total_seconds(), 0.0), settings.lease_s)
    return (1 - settings.initial_alpha_share) * elapsed_s / _HOUR_S


def _log_sum(log: float, value: float) -> float:
    """Return log(exp(log) + value) without overflow."""
    if not value > 0:
        return log
    low, high = sorted((log, math.log(value)))
    return high + math.log1p(math.exp(low - high))


def _is_monotone(old_arms: BothArms, new_arms: BothArms) -> bool:
    """Return whether no count has decreased."""
    old_evidence, new_evidence = old_arms.evidence, new_arms.evidence
    return all(
        getattr(old_counts, name) <= getattr(new_counts, name)
        for old_counts, new_counts in (
            (old_evidence.production, new_evidence.production),
            (old_evidence.challenger, new_evidence.challenger),
        )
        for name in ArmCounts.model_fields
    )


def _subtract_arms(new_arms: BothArms, old_arms: BothArms) -> BothArms | None:
    """Return the increase of the counts; None if an arm has more new faults than new requests."""
    challenger = _subtract_counts(new_arms.evidence.challenger, old_arms.evidence.challenger)
    production = _subtract_counts(new_arms.evidence.production, old_arms.evidence.production)
    if challenger is None or production is None:
        return None
    return BothArms(production=production, challenger=challenger)


def _subtract_counts(new_counts: ArmCounts, old_counts: ArmCounts) -> ArmCounts | None:
    increase = {
        name: getattr(new_counts, name) - getattr(old_counts, name)
        for name in ArmCounts.model_fields
    }
    return ArmCounts(**increase) if max(increase.values()) <= increase["requests"] else None


def _evidence_at(
    traffic: TrafficCounts, log_evidence: dict[GuardName, tuple[float, ...]]
) -> HarmEvidence:
    comparable = traffic.comparable_counts
    return HarmEvidence(
        until=traffic.until,
        production=comparable.production,
        challenger=comparable.challenger,
        servers=dict(traffic.arms_by_server),
        log_evidence=log_evidence,
    )
