"""Reads what the ledger knows of a rollout and keeps its page with the other reports."""

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
    """Make the page of a rollout as it is now, and keep it under ``SLUICE_HOME/reports``.

    Args:
        ledger: Holds the rollout and what servers saw.
        rollout_id: Of any rollout, under way or over.
        failed: What ``keep_failures`` said; None when it was not asked.
        home: State folder.
        environ: May say where pages are served.
        now: The present moment.

    Raises:
        ContractError: There is no such rollout.
        StorageError: The ledger cannot be read, or the folder not written.
    """
    transitions = ledger.rollout_transitions(rollout_id)
    if not transitions:
        raise ContractError(
            f"There is no rollout {rollout_id!r}.",
            fix="Give an id that 'sluice rollout list' names.",
        )
    rollout = _newest(ledger, transitions)
    seen = ledger.observations
    at_end = rollout if not rollout.is_over or len(transitions) < 2 else transitions[-2].rollout
    page = rollout_page(
        rollout,
        transitions,
        window=seen.window(at_end),
        agreement=seen.agreement(rollout_id),
        quality=seen.quality(rollout_id),
        failed=failed,
        now=now,
    )
    name = f"rollouts/{rollout.model}/version-{rollout.version}-{rollout_id[:8]}"
    return save_page(page, name, home=home, environ=environ)


def _newest(ledger: RolloutLedger, transitions: list[Transition]) -> Rollout:
    """Return the rollout with what looks that changed nothing have learnt since."""
    last = transitions[-1].rollout
    head = ledger.rollout(last.model)
    return head if head is not None and head.id == last.id else last
