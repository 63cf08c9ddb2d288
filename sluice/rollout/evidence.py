"""Evidence of harm that may be looked at all the time: a folded e-process for each guard (ROLL-2).

Of several bad answers of both arms, how many are the challenger's? When the arm makes no
difference, each is the challenger's with its share of the requests, however bad the hour is for
both arms together. That is what is tested; rates themselves are not compared. And it is asked of
each server by itself: what a server has to bear, and whether it has the challenger, is its own.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from sluice.base.settings import Record
from sluice.rollout.observations import ArmCounts, BothArms, Window
from sluice.rollout.settings import RolloutSettings

GuardName = Literal["errors", "timeouts", "not_finite", "slower"]
GUARDS: tuple[GuardName, ...] = get_args(GuardName)
_HOUR_S = 3600.0


class Evidence(Record):
    """What was counted and learnt so far. Survives a restart: it is all there is to know."""

    until: datetime | None = Field(None, description="Of the last window; None before the first.")
    production: ArmCounts = Field(
        ArmCounts(), description="Last seen at this step, of the servers that are compared."
    )
    challenger: ArmCounts = Field(ArmCounts(), description="The same.")
    servers: dict[str, BothArms] = Field(
        default_factory=dict, description="Last seen at this step, each server by itself."
    )
    log_evidence: dict[GuardName, tuple[float, ...]] = Field(
        description="Logarithm of each guard's evidence by ratio of the settings."
    )

    def of(self, guard: GuardName) -> float:
        """Return the evidence of one guard, over all ratios."""
        return math.fsum(math.exp(min(log, 700.0)) for log in self.log_evidence[guard])

    @property
    def by_server(self) -> Mapping[str, BothArms]:
        """What each server had counted; an older Sluice kept their sum only."""
        together = BothArms(production=self.production, challenger=self.challenger)
        return self.servers or {"": together}


class Trials(NamedTuple):
    """Bad answers that one server's arms gave since the last look."""

    bad: int
    """Of the challenger."""

    of: int
    """Of both arms."""

    chance: float
    """Most a healthy challenger has of them [rate]."""


def no_evidence(settings: RolloutSettings) -> Evidence:
    """Return what is known before the first request."""
    each = tuple(math.log(settings.start_part / len(settings.ratios)) for _ in settings.ratios)
    return Evidence(log_evidence=dict.fromkeys(GUARDS, each))


def next_step(evidence: Evidence) -> Evidence:
    """Return the evidence at the start of another step, whose counts begin at zero."""
    return Evidence(until=evidence.until, log_evidence=evidence.log_evidence)


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
    before, now = evidence.by_server, window.by_server
    if not all(_grew(arms, now.get(server, BothArms())) for server, arms in before.items()):
        is_stale = evidence.until is not None and window.until < evidence.until
        return evidence if is_stale else _seen(window, evidence.log_evidence)
    added = [_added(arms, before.get(server, BothArms())) for server, arms in now.items()]
    whole = [arms for arms in added if arms is not None]
    if len(whole) < len(added):
        return evidence
    mass = _mass(evidence.until, window.until, settings)
    log_evidence = {
        guard: update(
            evidence.log_evidence[guard],
            [_trials(arms, guard) for arms in whole],
            ratios=settings.ratios,
            mass=mass,
        )
        for guard in GUARDS
    }
    return _seen(window, log_evidence)


def update(
    log_evidence: Sequence[float],
    servers: Sequence[Trials],
    *,
    ratios: Sequence[float],
    mass: float,
) -> tuple[float, ...]:
    """Return the logarithms of the evidence after more trials, of which some came out bad.

    A trial is a bad answer of either arm; it comes out bad when it is the challenger's. For each
    ratio r of the odds and each server, the evidence is multiplied by the likelihood ratio of
    Binomial(of, chance) with its odds raised by r. That is at most 1 on average when a trial is
    bad with at most ``chance``: a test supermartingale; and so is the product over servers, as a
    server's routing says nothing about another's. A server without the challenger multiplies by 1.
    ``mass`` is added before each look: a bet that the harm begins just now. What the evidence
    started with and the masses of an hour sum to 1, and so bound its expectation in a healthy
    hour; by Doob's inequality it ever exceeds 1 / alpha in that hour with probability alpha at
    most, however often one looks.

    Args:
        log_evidence: By ratio.
        servers: The trials of each; with none at all nothing changes.
        ratios: Of the odds.
        mass: Added over all ratios.

    Assumes:
        Requests go to the arms by chance, without regard to how they will end. Given the requests
        of a server's arms in a window and the bad ones among them, the challenger's bad ones are
        then hypergeometric, whatever the rate did meanwhile; its mean of any convex function is
        at most the binomial's (Hoeffding), so the binomial is safe. With copies both arms get every
        request, and each fault that only one of them has is a fair coin. Clients who know their arm
        and aim at it break this; so faults of both arms are left out, and those of one client count
        up to a share (``Unshared``).

    Source:
        Ville (1939); Hoeffding (1963), JASA 58(301), theorem 4; Ramdas, Gruenwald, Vovk & Shafer
        (2023), Statistical Science 38(4); for evidence that begins anew all the time: Shin,
        Ramdas & Rinaldo (2024), E-detectors, New England Journal of Statistics in Data Science.
    """
    if not any(server.of for server in servers):
        return tuple(log_evidence)
    each = mass / len(ratios)
    return tuple(
        _log_sum(log, each) + math.fsum(_log_likelihood(server, ratio) for server in servers)
        for log, ratio in zip(log_evidence, ratios, strict=True)
    )


def _log_likelihood(server: Trials, ratio: float) -> float:
    return server.bad * math.log(ratio) - server.of * math.log1p((ratio - 1) * server.chance)


def _trials(added: BothArms, guard: GuardName) -> Trials:
    ours, theirs = added.evidence.challenger, added.evidence.production
    requests = ours.requests + theirs.requests
    return Trials(
        bad=getattr(ours, guard),
        of=getattr(ours, guard) + getattr(theirs, guard),
        chance=ours.requests / requests if requests else 0.0,
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


def _grew(before: BothArms, now: BothArms) -> bool:
    was, found = before.evidence, now.evidence
    arms = (was.production, found.production), (was.challenger, found.challenger)
    return all(
        getattr(b, name) <= getattr(n, name) for b, n in arms for name in ArmCounts.model_fields
    )


def _added(now: BothArms, before: BothArms) -> BothArms | None:
    """Return what was added, or None when an arm's holds more bad answers than requests."""
    ours = _less(now.evidence.challenger, before.evidence.challenger)
    theirs = _less(now.evidence.production, before.evidence.production)
    if ours is None or theirs is None:
        return None
    return BothArms(production=theirs, challenger=ours)


def _less(now: ArmCounts, before: ArmCounts) -> ArmCounts | None:
    new = {name: getattr(now, name) - getattr(before, name) for name in ArmCounts.model_fields}
    return ArmCounts(**new) if max(new.values()) <= new["requests"] else None


def _seen(window: Window, log_evidence: dict[GuardName, tuple[float, ...]]) -> Evidence:
    compared = window.compared
    return Evidence(
        until=window.until,
        production=compared.production,
        challenger=compared.challenger,
        servers=dict(window.by_server),
        log_evidence=log_evidence,
    )
