"""Reconciles a model's rollout: reads what servers counted, decides, records the transition.

The sensor, a rehearsal or a test calls this periodically.
"""

from datetime import datetime, timedelta

from sluice.base.errors import RolloutConflict
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.prediction_agreement import prediction_drift
from sluice.rollout.samples import ServerState
from sluice.rollout.state import PredictionDrift, Rollout, Transition
from sluice.rollout.state_machine import advance
from sluice.rollout.transitions import roll_back

_MAX_SAMPLES = 1000
"""Newest samples of the rollout that are searched for pairs."""

_MAX_REPORT_AGE_S = 15.0
"""A server whose last report is older counts as gone."""

_MAX_LOADING_S = 60.0
"""Time that a challenger may take to load after its rollout began."""


def reconcile(ledger: RolloutLedger, model: str, *, now: datetime) -> Transition | None:
    """Check a rollout once and record the result; None when no rollout is in progress.

    Args:
        ledger: Holds the rollout, and the reports of servers.
        model: Name of the model.
        now: Current time, from the same clock as at the last call.

    Returns:
        The recorded transition. In phase awaiting_promotion, call ``ledger.finish_rollout``
        next.

    Raises:
        StorageError: The ledger cannot be read or written.
        RolloutConflict: Another process changed the rollout in the meantime; call again.
    """
    rollout = ledger.rollout(model)
    if rollout is None or rollout.is_over:
        return None
    transition = observe(ledger, rollout, now=now)
    ledger.record_transition(rollout, transition)
    return transition


def observe(ledger: RolloutLedger, rollout: Rollout, *, now: datetime) -> Transition:
    """Return the transition that a check at this moment would make; nothing is written."""
    observations = ledger.observations
    split = ledger.traffic_split(rollout.model)
    verdicts = observations.quality(rollout.id)
    load_failure = _load_failure(live_servers(ledger, rollout.model, now=now), rollout, now)
    if load_failure and rollout.phase in ("rolling", "paused"):
        return roll_back(
            rollout,
            now=now,
            reason=f"No server can load the challenger: {load_failure}",
            remedy="Fix what the servers report, evaluate the challenger again, then start a new "
            "rollout.",
        )
    return advance(
        rollout,
        observations.window(rollout),
        now=now,
        production=None if split is None else split.production,
        quality=verdicts[-1] if verdicts else None,
        drift=_drift(ledger, rollout),
    )


def try_reconcile(ledger: RolloutLedger, model: str, *, now: datetime) -> Transition | None:
    """Call ``reconcile``, and return None also when another process was faster."""
    try:
        return reconcile(ledger, model, now=now)
    except RolloutConflict:
        return None


def live_servers(ledger: RolloutLedger, model: str, *, now: datetime) -> list[ServerState]:
    """Return the servers of a model that reported recently and are not draining."""
    since = now - timedelta(seconds=_MAX_REPORT_AGE_S)
    found = ledger.observations.servers(model, since=since)
    return [server for server in found if not server.draining]


def _load_failure(servers: list[ServerState], rollout: Rollout, now: datetime) -> str:
    """Return why no server has loaded the challenger; empty while one has, or none reports."""
    followers = [s for s in servers if s.epoch >= rollout.epoch]
    if (now - rollout.started_at).total_seconds() < _MAX_LOADING_S or not followers:
        return ""
    return followers[0].challenger_problem if all(s.challenger_problem for s in followers) else ""


def _drift(ledger: RolloutLedger, rollout: Rollout) -> PredictionDrift | None:
    agreement = ledger.observations.agreement(rollout.id)
    if agreement is None:
        return None
    return prediction_drift(
        ledger.observations.samples(
            rollout.model, rollout=rollout.id, newest=_MAX_SAMPLES, answered=True
        ),
        agreement,
        limit=rollout.settings.max_disagreement,
        min_pairs=rollout.settings.min_pairs,
    )
