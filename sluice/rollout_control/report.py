"""Saves the page of a rollout with the other reports."""

from collections.abc import Mapping
from datetime import datetime

from sluice.base.errors import ContractError
from sluice.base.home import Home
from sluice.registry.rollouts import RolloutLedger
from sluice.reports.folder import SavedPage, save_page
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.failures import FailedRows
from sluice.rollout_control.page import rollout_page


def save_rollout_page(
    ledger: RolloutLedger,
    rollout_id: str,
    *,
    failed: FailedRows | None,
    home: Home,
    environ: Mapping[str, str],
    now: datetime,
) -> SavedPage:
    """Write the current page of a rollout below ``SLUICE_HOME/reports``.

    Args:
        ledger: Holds the rollout and the reports of servers.
        rollout_id: Id of a rollout, in progress or over.
        failed: Result of ``save_failures_suite``; None when it was not called.
        home: State folder.
        environ: May name where pages are served.
        now: Current time.

    Raises:
        ContractError: The rollout does not exist.
        StorageError: The ledger cannot be read, or the folder cannot be written.
    """
    transitions = ledger.rollout_transitions(rollout_id)
    if not transitions:
        raise ContractError(
            f"The rollout {rollout_id!r} does not exist.",
            fix="Give an id from 'sluice rollout list'.",
        )
    rollout = _newest(ledger, transitions)
    observations = ledger.observations
    at_end = rollout if not rollout.is_over or len(transitions) < 2 else transitions[-2].rollout
    page = rollout_page(
        rollout,
        transitions,
        window=observations.window(at_end),
        agreement=observations.agreement(rollout_id),
        quality=observations.quality(rollout_id),
        failed=failed,
        now=now,
    )
    name = f"rollouts/{rollout.model}/version-{rollout.version}-{rollout_id[:8]}"
    return save_page(page, name, home=home, environ=environ)


def _newest(ledger: RolloutLedger, transitions: list[Transition]) -> Rollout:
    """Return the rollout including evidence from checks that made no transition."""
    last = transitions[-1].rollout
    head = ledger.rollout(last.model)
    return head if head is not None and head.id == last.id else last
