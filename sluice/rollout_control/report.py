"""Saves the page of a rollout in the folder of reports."""

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
    failed_rows: FailedRows | None,
    home: Home,
    environ: Mapping[str, str],
    now: datetime,
) -> SavedPage:
    """Write the current page of a rollout below ``SLUICE_HOME/reports``.

    Args:
        ledger: Ledger with the rollout and the reports of servers.
        rollout_id: Id of a rollout, which may be in progress or over.
        failed_rows: Result of ``save_failures_suite``; None if it was not called.
        home: State folder.
        environ: Environment variables, which may contain the address of the page server.
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
    rollout = _newest_state(ledger, transitions)
    observations = ledger.observations
    # A rollback begins a new epoch without counts, so the counts of the epoch before are shown.
    has_state_before_end = rollout.is_over and len(transitions) > 1
    counted_rollout = transitions[-2].rollout if has_state_before_end else rollout
    page = rollout_page(
        rollout,
        transitions,
        traffic=observations.traffic_counts(counted_rollout),
        agreement=observations.agreement(rollout_id),
        quality=observations.quality(rollout_id),
        failed_rows=failed_rows,
        now=now,
    )
    name = f"rollouts/{rollout.model}/version-{rollout.version}-{rollout_id[:8]}"
    return save_page(page, name, home=home, environ=environ)


def _newest_state(ledger: RolloutLedger, transitions: list[Transition]) -> Rollout:
    """Return the rollout with the evidence of the last check, which may have made no transition."""
    last_rollout = transitions[-1].rollout
    checked_rollout = ledger.rollout(last_rollout.model)
    return (
        checked_rollout
        if checked_rollout is not None and checked_rollout.id == last_rollout.id
        else last_rollout
    )
