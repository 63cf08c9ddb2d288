"""One look at a model's rollout: read what servers saw, let the machine decide, keep it (ROLL-2).

Whoever calls this often enough drives the rollout: the sensor, a rehearsal, a test.
"""

from datetime import datetime, timedelta

from sluice.base.errors import RolloutConflict
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.agreement import prediction_drift
from sluice.rollout.changes import withdraw
from sluice.rollout.machine import advance
from sluice.rollout.samples import ServerState
from sluice.rollout.state import PredictionDrift, Rollout, Transition

_PAIRS = 1000
"""Newest samples of the rollout that are read for its pairs."""

_HEARD_S = 15.0
"""A server that reported within this time is there."""

_LOADING_S = 60.0
"""So long a challenger may take to load, once its rollout began."""


def drive(ledger: RolloutLedger, model: str, *, now: datetime) -> Transition | None:
    """Look once; None when no rollout is under way.

    Args:
        ledger: Holds the rollout, and what servers reported.
        model: Its name.
        now: The present moment, of the clock that called last time too.

    Returns:
        What came of it, which the ledger has. Phase held means ``ledger.finish_rollout`` is due.

    Raises:
        StorageError: The ledger cannot be read or written.
        RolloutConflict: Somebody was faster; look again.
    """
    rollout = ledger.rollout(model)
    if rollout is None or rollout.is_over:
        return None
    transition = look_at(ledger, rollout, now=now)
    ledger.record_transition(rollout, transition)
    return transition


def look_at(ledger: RolloutLedger, rollout: Rollout, *, now: datetime) -> Transition:
    """Return what a look at this moment would do to a rollout; nothing is written."""
    seen = ledger.observations
    weights = ledger.weights(rollout.model)
    verdicts = seen.quality(rollout.id)
    silent = _nobody_loads_it(live_servers(ledger, rollout.model, now=now), rollout, now)
    if silent and rollout.phase in ("rolling", "paused"):
        return withdraw(
            rollout,
            now=now,
            reason=f"No server can load its challenger: {silent}",
            remedy="Mend what the servers say, evaluate it again, then start it again.",
        )
    return advance(
        rollout,
        seen.window(rollout),
        now=now,
        production=None if weights is None else weights.production,
        quality=verdicts[-1] if verdicts else None,
        drift=_drift(ledger, rollout),
    )


def try_drive(ledger: RolloutLedger, model: str, *, now: datetime) -> Transition | None:
    """Look once, as ``drive``; None also when somebody was faster."""
    try:
        return drive(ledger, model, now=now)
    except RolloutConflict:
        return None


def live_servers(ledger: RolloutLedger, model: str, *, now: datetime) -> list[ServerState]:
    """Return the servers of a model that reported a moment ago and do not drain."""
    since = now - timedelta(seconds=_HEARD_S)
    found = ledger.observations.servers(model, since=since)
    return [server for server in found if not server.draining]


def _nobody_loads_it(servers: list[ServerState], rollout: Rollout, now: datetime) -> str:
    """Return why no server has the challenger; "" while one has, or none is there to say."""
    there = [s for s in servers if s.epoch >= rollout.epoch]
    if (now - rollout.started_at).total_seconds() < _LOADING_S or not there:
        return ""
    return there[0].challenger_problem if all(s.challenger_problem for s in there) else ""


def _drift(ledger: RolloutLedger, rollout: Rollout) -> PredictionDrift | None:
    agreement = ledger.observations.agreement(rollout.id)
    if agreement is None:
        return None
    return prediction_drift(
        ledger.observations.samples(
            rollout.model, rollout=rollout.id, newest=_PAIRS, answered=True
        ),
        agreement,
        limit=rollout.settings.max_disagreement,
        min_pairs=rollout.settings.min_pairs,
    )
