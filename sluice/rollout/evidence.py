"""Anytime-valid evidence that the challenger is worse: one e-process for each guard.

When the arm makes no difference, a faulty response comes from the challenger with the
challenger's share of the requests, however many faults both arms have at that time. The test
compares the challenger's part of all faulty responses with that share; it does not compare fault
rates. Each server is tested separately, because load and the presence of a challenger differ
between servers.
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
GUARDS: tuple[GuardName, ...] = get_args(GuardName)
_HOUR_S = 3600.0


class HarmEvidence(Record):
    """Counts and evidence of a rollout so far; complete, so a restart continues from it."""

    until: datetime | None = Field(
        None, description="End of the last window of counts; None before the first."
    )
    production: ArmCounts = Field(
        ArmCounts(),
        description="Production's counts in this step at the last check, over the servers that "
        "are compared.",
    )
    challenger: ArmCounts = Field(
        ArmCounts(),
        description="The challenger's counts in this step at the last check, over the servers "
        "that are compared.",
    )
    servers: dict[str, BothArms] = Field(
        default_factory=dict, description="Counts of each server in this step at the last check."
    )
    log_evidence: dict[GuardName, tuple[float, ...]] = Field(
        description="Logarithm of each guard's evidence, one value per ratio in odds_ratios."
    )

    def e_value(self, guard: GuardName) -> float:
        """Return the e-value of one guard, summed over all odds ratios."""
        return math.fsum(math.exp(min(log, 700.0)) for log in self.log_evidence[guard])

    @property
    def by_server(self) -> Mapping[str, BothArms]:
        """Counts of each server.

        Data written by an older Sluice has only their sum, which then has the name "".
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
    """Largest probability that a fault is the challenger's when it is healthy [rate]."""


def initial_evidence(settings: RolloutSettings) -> HarmEvidence:
    """Return the evidence of a rollout before its first request."""
    each = tuple(
        math.log(settings.initial_alpha_share / len(settings.odds_ratios))
        for _ in settings.odds_ratios
    )
    return HarmEvidence(log_evidence=dict.fromkeys(GUARDS, each))


def begin_step(evidence: HarmEvidence) -> HarmEvidence:
    """Return the evidence at the start of the next step: counts restart at zero."""
    return HarmEvidence(until=evidence.until, log_evidence=evidence.log_evidence)


def update_evidence(
    evidence: HarmEvidence, window: TrafficCounts, settings: RolloutSettings
) -> HarmEvidence:
    """Return the evidence updated with the counts of one more check.

    Only the increase since the last check enters, so the result does not depend on how often the
    counts are checked. When a count decreased (a restarted counter), the new counts become the
    baseline and add no evidence; if the window is also older than the last one, it is ignored.
    An increase with more faults than requests is incomplete and is left for the next check.

    Args:
        evidence: Evidence after the last check.
        window: Counts of this step up to now.
        settings: Settings of the rollout.
    """
    before, now = evidence.by_server, window.by_server
    if not all(_is_monotone(arms, now.get(server, BothArms())) for server, arms in before.items()):
        is_stale = evidence.until is not None and window.until < evidence.until
        return evidence if is_stale else _evidence_at(window, evidence.log_evidence)
    added = [_increases(arms, before.get(server, BothArms())) for server, arms in now.items()]
    whole = [arms for arms in added if arms is not None]
    if len(whole) < len(added):
        return evidence
    mass = _mass(evidence.until, window.until, settings)
    log_evidence = {
        guard: update_log_evidence(
            evidence.log_evidence[guard],
            [_trials(arms, guard) for arms in whole],
            odds_ratios=settings.odds_ratios,
            mass=mass,
        )
        for guard in GUARDS
    }
    return _evidence_at(window, log_evidence)


def update_log_evidence(
    log_evidence: Sequence[float],
    servers: Sequence[FaultTrials],
    *,
    odds_ratios: Sequence[float],
    mass: float,
) -> tuple[float, ...]:
    """Return the logarithms of the evidence after more faulty responses.

    A trial is a faulty response of either arm; a success is one of the challenger. For each odds
    ratio r and each server, the evidence is multiplied by the likelihood ratio of
    Binomial(total_faults, challenger_share) with its odds raised by r. Its expectation is at
    most 1 when a fault is the challenger's with probability at most ``challenger_share``, so the
    evidence is a test supermartingale. The product over servers is one as well, because the
    servers route independently. A server without the challenger multiplies by 1.

    ``mass`` is added before each check: a bet that the harm begins at this moment. The initial
    evidence and the masses of one hour sum to 1, which bounds the expectation in a healthy hour.
    By Doob's inequality the evidence exceeds 1 / alpha within that hour with probability at most
    alpha, however often it is checked.

    Args:
        log_evidence: Logarithm of the evidence for each odds ratio.
        servers: Trials of each server; without any fault the evidence stays the same.
        odds_ratios: Odds ratios of the alternatives.
        mass: Evidence added before this check, over all odds ratios together.

    Assumes:
        Requests are routed to the arms at random, independently of their outcome. Given the
        requests of a server's arms in a window and the faults among them, the challenger's
        number of faults is then hypergeometric, however the rate changed meanwhile; its mean of
        any convex function is at most the binomial's (Hoeffding), so the binomial is
        conservative. With shadow traffic both arms get every request, and each fault of only one
        arm is a fair coin. Clients that know their arm and target it break this assumption;
        therefore faults of both arms are left out, and those of one client count up to a limit
        (``EvidenceCounts``).

    Source:
        Ville (1939); Hoeffding (1963), JASA 58(301), theorem 4; Ramdas, Gruenwald, Vovk & Shafer
        (2023), Statistical Science 38(4); for evidence that restarts continually: Shin, Ramdas &
        Rinaldo (2024), E-detectors, New England Journal of Statistics in Data Science.
    """
    if not any(server.total_faults for server in servers):
        return tuple(log_evidence)
    each = mass / len(odds_ratios)
    return tuple(
        _log_sum(log, each) + math.fsum(_log_likelihood(server, ratio) for server in servers)
        for log, ratio in zip(log_evidence, odds_ratios, strict=True)
    )


def _log_likelihood(server: FaultTrials, ratio: float) -> float:
    return server.challenger_faults * math.log(ratio) - server.total_faults * math.log1p(
        (ratio - 1) * server.challenger_share
    )


def _trials(added: BothArms, guard: GuardName) -> FaultTrials:
    ours, theirs = added.evidence.challenger, added.evidence.production
    requests = ours.requests + theirs.requests
    return FaultTrials(
        challenger_faults=getattr(ours, guard),
        total_faults=getattr(ours, guard) + getattr(theirs, guard),
        challenger_share=ours.requests / requests if requests else 0.0,
    )


def _mass(before: datetime | None, until: datetime, settings: RolloutSettings) -> float:
    """Return the mass for the time since the last check; a clock that jumped adds little."""
    if before is None:
        return 0.0
    passed_s = (until - before).total_seconds()
    return (1 - settings.initial_alpha_share) * min(max(passed_s, 0.0), settings.lease_s) / _HOUR_S


def _log_sum(log: float, value: float) -> float:
    """Return log(exp(log) + value) without overflow."""
    if not value > 0:
        return log
    low, high = sorted((log, math.log(value)))
    return high + math.log1p(math.exp(low - high))


def _is_monotone(before: BothArms, now: BothArms) -> bool:
    was, found = before.evidence, now.evidence
    arms = (was.production, found.production), (was.challenger, found.challenger)
    return all(
        getattr(b, name) <= getattr(n, name) for b, n in arms for name in ArmCounts.model_fields
    )


def _increases(now: BothArms, before: BothArms) -> BothArms | None:
    """Return the increase, or None when an arm has more new faults than new requests."""
    ours = _increase(now.evidence.challenger, before.evidence.challenger)
    theirs = _increase(now.evidence.production, before.evidence.production)
    if ours is None or theirs is None:
        return None
    return BothArms(production=theirs, challenger=ours)


def _increase(now: ArmCounts, before: ArmCounts) -> ArmCounts | None:
    new = {name: getattr(now, name) - getattr(before, name) for name in ArmCounts.model_fields}
    return ArmCounts(**new) if max(new.values()) <= new["requests"] else None


def _evidence_at(
    window: TrafficCounts, log_evidence: dict[GuardName, tuple[float, ...]]
) -> HarmEvidence:
    compared = window.comparable
    return HarmEvidence(
        until=window.until,
        production=compared.production,
        challenger=compared.challenger,
        servers=dict(window.by_server),
        log_evidence=log_evidence,
    )
