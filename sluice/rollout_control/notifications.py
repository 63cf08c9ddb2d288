"""Publishes the transitions of a rollout: updates its page and raises alerts."""

from collections.abc import Mapping
from datetime import datetime

from sluice.base.digests import short
from sluice.base.home import Home
from sluice.observability.alerts import Alert, raise_alert
from sluice.registry.rollouts import RolloutLedger
from sluice.reports.folder import SavedPage
from sluice.rollout.state import Transition
from sluice.rollout_control.failures import FailedRows
from sluice.rollout_control.report import save_rollout_page


def publish_transitions(
    ledger: RolloutLedger,
    transitions: list[Transition],
    *,
    failed_rows: FailedRows | None,
    home: Home,
    environ: Mapping[str, str],
    now: datetime,
) -> SavedPage:
    """Update the rollout's page, and raise an alert for each transition that needs one.

    Args:
        ledger: Ledger with the rollout.
        transitions: Transitions of one rollout that were not published yet, at least one.
        failed_rows: Result of saving the rows that the challenger failed on; None if they were not
            saved.
        home: State folder.
        environ: Environment variables with the address of the page server and of the alert webhook.
        now: Current time.

    Raises:
        StorageError: The ledger cannot be read, or the page cannot be written.
    """
    for transition in transitions:
        alert = alert_for(transition)
        if alert is not None:
            raise_alert(alert, home=home, environ=environ)
    return save_rollout_page(
        ledger,
        transitions[-1].rollout.id,
        failed_rows=failed_rows,
        home=home,
        environ=environ,
        now=now,
    )


def alert_for(transition: Transition) -> Alert | None:
    """Return the alert for a transition; None if the transition needs no attention."""
    rollout = transition.rollout
    subject = f"{rollout.model} version {rollout.version}"
    if transition.outcome == "roll_back":
        kind, severity = "rolled_back", "critical"
        what = f"{subject} was rolled back; version {rollout.production_version} answers all users."
    elif transition.outcome == "inconclusive":
        kind, severity = "rollout_paused", "warning"
        what = f"The rollout of {subject} paused at {100 * rollout.share:g} % of the traffic."
    else:
        return None
    return Alert.model_validate(
        {
            "key": f"{short(rollout.id)}/{rollout.revision}",
            "kind": kind,
            "what": what,
            "why": transition.reason,
            "do": transition.remedy,
            "severity": severity,
            "model": rollout.model,
            "rollout": rollout.id,
            "at": transition.at,
        }
    )
