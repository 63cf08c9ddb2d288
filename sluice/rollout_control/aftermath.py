"""What is told once a rollout moved: its page, and an alert where a person should know (OBS-1)."""

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


def tell(
    ledger: RolloutLedger,
    news: list[Transition],
    *,
    failed: FailedRows | None,
    home: Home,
    environ: Mapping[str, str],
    now: datetime,
) -> SavedPage:
    """Bring the rollout's page up to date, and raise an alert for each transition that needs one.

    Args:
        ledger: Holds the rollout.
        news: Transitions of one rollout that were not told yet, at least one.
        failed: What became of the rows it failed on; None while it is under way.
        home: State folder.
        environ: Says where pages are served and where alerts go.
        now: The present moment.

    Raises:
        StorageError: The ledger cannot be read, or the page not written.
    """
    for transition in news:
        alert = alert_of(transition)
        if alert is not None:
            raise_alert(alert, home=home, environ=environ)
    return save_rollout_page(
        ledger, news[-1].rollout.id, failed=failed, home=home, environ=environ, now=now
    )


def alert_of(transition: Transition) -> Alert | None:
    """Return what a person should know at once of a transition; None for what goes as planned."""
    rollout = transition.rollout
    who = f"{rollout.model} version {rollout.version}"
    if transition.outcome == "roll_back":
        kind, severity = "rolled_back", "critical"
        what = f"{who} was rolled back; version {rollout.production_version} answers everybody."
    elif transition.outcome == "inconclusive":
        kind, severity = "rollout_paused", "warning"
        what = f"The rollout of {who} has paused at {100 * rollout.share:g} % of the traffic."
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
