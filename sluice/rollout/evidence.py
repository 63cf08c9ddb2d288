"""Evidence of harm that may be looked at all the time: a folded e-process for each guard (ROLL-2).

Of several bad answers of both arms, how many are the challenger's? When the arm makes no
difference, each is the challenger's with its share of the requests, however bad the hour is for
both arms together. That is what is tested; rates themselves are not compared.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, get_args

from pydantic import Field

from sluice.rollout.observations import ArmCounts, Window
from sluice.rollout.settings import RolloutSettings
from sluice.settings import Record

GuardName = Literal["errors", "timeouts", "not_finite", "slower"]
GUARDS: tuple[GuardName, ...] = get_args(GuardName)
_HOUR_S = 3600.0


class Evidence(Record):
    """What was counted and learnt so far. Survives a restart: it is all there is to know."""

    until: datetime | None = Field(None, description="Of the last window; None before the first.")
    production: ArmCounts = Field(ArmCounts(), description="Last seen at this step.")
    challenger: ArmCounts = Field(ArmCounts(), description="Last seen at this step.")
    log_evidence: dict[GuardName, tuple[float, ...]] = Field(
        description="Logarithm of each guard's evidence by ratio of the settings."
    )

    def of(self, guard: GuardName) -> float:
        """Return the evidence of one guard, over all ratios."""
        return math.fsum(math.exp(min(log, 700.0)) for log in self.log_evidence[guard])


def no_evidence(settings: RolloutSettings) -> Evidence:
    """Return what is known before the first request."""
    each = tuple(math.log(settings.start_part / len(settings.ratios)) for _ in settings.ratios)
    return Evidence(log_evidence=dict.fromkeys(GUARDS, each))


def next_step(evidence: Evidence) -> Evidence:
    """Return the evidence at the start of another step, whose counts begin at zero."""
    return evidence.model_copy(update={"production": ArmCounts(), "challenger": ArmCounts()})


def fold(evidence: Evidence, window: Window, settings: RolloutSettings) -> Evidence:
    """Return the evidence after one more look at the counts.

    Only what is new since the last look enters, so it does not matter how often one looks. Counts
    that went back are taken as a new beginning, and teach nothing by themselves; in a window older
    than the last they are passed over. An increase that holds more bad answers than requests is
    still on its way, and waits for the next look.

    Args:
        evidence: As the last look left it.
        window: The counts of this step up to now.
        settings: Of the rollout.
    """
    if not (
        _grew(evidence.production, window.production)
        and _grew(evidence.challenger, window.challenger)
    ):
        is_stale = evidence.until is not None and window.until < evidence.until
        return evidence if is_stale else _seen(evidence, window, evidence.log_evidence)
    ours = _less(window.challenger, evidence.challenger)
    theirs = _less(window.production, evidence.production)
    if ours is None or theirs is None:
        return evidence
    mass = _mass(evidence.until, window.until, settings)
    requests = ours.requests + theirs.requests
    chance = ours.requests / requests if requests else 0.0
    log_evidence = {
        guard: update(
            evidence.log_evidence[guard],
            bad=getattr(ours, guard),
            of=getattr(ours, guard) + getattr(theirs, guard),
            chance=chance,
            ratios=settings.ratios,
            mass=mass,
        )
        for guard in GUARDS
    }
    return _seen(evidence, window, log_evidence)


def update(
    log_evidence: Sequence[float],
    *,
    bad: int,
    of: int,
    chance: float,
    ratios: Sequence[float],
    mass: float,
) -> tuple[float, ...]:
    """Return the logarithms of the evidence after ``bad`` of ``of`` trials came out bad.

    A trial is a bad answer of either arm; it comes out bad when it is the challenger's. For each
    ratio r of the odds, the evidence is multiplied by the likelihood ratio of Binomial(of, chance)
    with its odds raised by r. That is at most 1 on average when a trial is bad with at most
    ``chance``: a test supermartingale. ``mass`` is added before each look: a bet that the harm
    begins just now. What the evidence started with and the masses of an hour sum to 1, and so
    bound its expectation in a healthy hour; by Doob's inequality it ever exceeds 1 / alpha in that
    hour with probability alpha at most, however often one looks.

    Args:
        log_evidence: By ratio.
        bad: Trials that came out bad.
        of: Trials; with none nothing changes.
        chance: Most a healthy challenger has [rate].
        ratios: Of the odds.
        mass: Added over all ratios.

    Assumes:
        Requests go to the arms by chance, without regard to how they will end. Given the requests
        of both arms in a window and the bad ones among them, the challenger's bad ones are then
        hypergeometric, whatever the rate did meanwhile; its mean of any convex function is at
        most the binomial's (Hoeffding), so the binomial is safe. With copies both arms get every
        request: where both fail, the evidence falls, as r <= ((1 + r) / 2)^2; the rest is a fair
        coin. A user who makes much of the traffic and fails far more often than others breaks it.

    Source:
        Ville (1939); Hoeffding (1963), JASA 58(301), theorem 4; Ramdas, Gruenwald, Vovk & Shafer
        (2023), Statistical Science 38(4); for evidence that begins anew all the time: Shin,
        Ramdas & Rinaldo (2024), E-detectors, New England Journal of Statistics in Data Science.
    """
    if not of:
        return tuple(log_evidence)
    each = mass / len(ratios)
    return tuple(
        _log_sum(log, each) + bad * math.log(ratio) - of * math.log1p((ratio - 1) * chance)
        for log, ratio in zip(log_evidence, ratios, strict=True)
    )


def _mass(before: datetime | None, until: datetime, settings: RolloutSettings) -> float:
    """Return what the time since the last look adds; a clock that jumped adds little."""
    if before is None:
        return 0.0
    passed_s = (until - before).total_seconds()
    return (1 - settings.start_part) * min(max(passed_s, 0.0), settings.lease_s) / _HOUR_S


def _log_sum(log: float, value: float) -> float:
    """Return log(exp(log) + value) without overflow."""
    if not value > 0:
        return log
    low, high = sorted((log, math.log(value)))
    return high + math.log1p(math.exp(low - high))


def _grew(before: ArmCounts, now: ArmCounts) -> bool:
    return all(getattr(now, name) >= getattr(before, name) for name in ArmCounts.model_fields)


def _less(now: ArmCounts, before: ArmCounts) -> ArmCounts | None:
    """Return what was added, or None when it holds more bad answers than requests."""
    new = {name: getattr(now, name) - getattr(before, name) for name in ArmCounts.model_fields}
    return ArmCounts(**new) if max(new.values()) <= new["requests"] else None


def _seen(
    evidence: Evidence, window: Window, log_evidence: dict[GuardName, tuple[float, ...]]
) -> Evidence:
    return evidence.model_copy(
        update={
            "until": window.until,
            "production": window.production,
            "challenger": window.challenger,
            "log_evidence": log_evidence,
        }
    )
