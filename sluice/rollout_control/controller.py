"""Controls the rollout of a model: reads the counts of servers, decides, records the transition.

The Dagster sensor, a rehearsal or a test calls ``reconcile`` periodically.
"""

from datetime import datetime, timedelta

from sluice.base.errors import RolloutConflict
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.prediction_agreement import measure_prediction_drift
from sluice.rollout.samples import ServerState
from sluice.rollout.state import PredictionDrift, Rollout, Transition
from sluice.rollout.state_machine import advance
from sluice.rollout.transitions import roll_back

_MAX_SAMPLES = 1000
"""Maximum number of the rollout's newest samples that are searched for pairs of predictions."""

_MAX_REPORT_AGE_S = 15.0
"""Maximum age of a server's last report for the server to count as running [s]."""

_MAX_LOADING_S = 60.0
"""Time after the start of a rollout during which a challenger may fail to load without a rollback
[s]."""


def reconcile(ledger: RolloutLedger, model: str, *, now: datetime) -> Transition | None:
    """Check a rollout once and record the result.

    Args:
        ledger: Ledger with the rollout and the reports of servers.
        model: Name of the model.
        now: Current time, from the same clock as at the last call.

    Returns:
        The recorded transition; None if no rollout is in progress. If the rollout is in phase
        awaiting_promotion after it, call ``ledger.finish_rollout`` next.

    Raises:
        StorageError: The ledger cannot be read or written.
        RolloutConflict: Another process changed the rollout meanwhile; call again.
    """
    rollout = ledger.rollout(model)
    if rollout is None or rollout.is_over:
        return None
    transition = assess(ledger, rollout, now=now)
    ledger.record_transition(rollout, transition)
    return transition


def assess(ledger: RolloutLedger, rollout: Rollout, *, now: datetime) -> Transition:
    """Return the transition that a check at ``now`` would make, without recording it."""
    observations = ledger.observations
    split = ledger.traffic_split(rollout.model)
    verdicts = observations.quality(rollout.id)
    load_failure = _load_failure(live_servers(ledger, rollout.model, now=now), rollout, now)
    if load_failure and rollout.phase in ("rolling", "paused"):
        return roll_back(
            rollout,
            now=now,
            reason=f"No server can load the challenger: {load_failure}",
            remedy="Fix the problem that the servers report, evaluate the challenger again, and "
            "start a new rollout.",
        )
    return advance(
        rollout,
        observations.traffic_counts(rollout),
        now=now,
        production=None if split is None else split.production,
        quality=verdicts[-1] if verdicts else None,
        drift=_measure_drift(ledger, rollout),
    )


def try_reconcile(ledger: RolloutLedger, model: str, *, now: datetime) -> Transition | None:
    """Call ``reconcile``, but return None if another process changed the rollout meanwhile."""
    try:
        return reconcile(ledger, model, now=now)
    except RolloutConflict:
        return None


def live_servers(ledger: RolloutLedger, model: str, *, now: datetime) -> list[ServerState]:
    """Return the servers of a model that reported recently and are not draining."""
    oldest_report_at = now - timedelta(seconds=_MAX_REPORT_AGE_S)
    servers = ledger.observations.servers(model, since=oldest_report_at)
    return [server for server in servers if not server.draining]


def _load_failure(servers: list[ServerState], rollout: Rollout, now: datetime) -> str:
    """Return why no server can load the challenger; "" if no such failure is known.

    In the first ``_MAX_LOADING_S``, and without reports of the current epoch, no failure is known.
    """
    problems = [s.challenger_problem for s in servers if s.epoch >= rollout.epoch]
    if (now - rollout.started_at).total_seconds() < _MAX_LOADING_S or not problems:
        return ""
    return problems[0] if all(problems) else ""


def _measure_drift(ledger: RolloutLedger, rollout: Rollout) -> PredictionDrift | None:
    """Return the distance between the predictions of both arms on live requests.

    Returns None if the distance on held-out rows was not measured.
    """
    agreement = ledger.observations.agreement(rollout.id)
    if agreement is None:
        return None
    return measure_prediction_drift(
        ledger.observations.samples(
            rollout.model, rollout=rollout.id, max_samples=_MAX_SAMPLES, without_fault=True
        ),
        agreement,
        limit=rollout.settings.max_disagreement,
        min_pairs=rollout.settings.min_pairs,
    )
