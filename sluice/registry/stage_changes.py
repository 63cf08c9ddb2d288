"""Records in the history when a version changes between the states dev and staging.

The state itself is not stored: it is derived from the receipts.
"""

from datetime import datetime

from sqlalchemy import Connection

from sluice.registry import evidence, queries
from sluice.registry.records import Version, VersionState


def record_stage_change(
    connection: Connection, version: Version, *, old_state: VersionState, at: datetime, actor: str
) -> None:
    """Append a history entry if new receipts changed the state of a version to dev or staging.

    Args:
        connection: Connection of the caller's transaction.
        version: Version in its new state.
        old_state: State before the receipts were linked. Nothing is recorded unless the version
            changed from dev to staging or back.
        at: Time for the history.
        actor: Actor for the history.
    """
    if {old_state, version.state} != {"dev", "staging"}:
        return
    linked_receipts = evidence.load_linked_receipts(connection, version.model, version.number)
    receipt = [each.receipt for each in linked_receipts if each.receipt.gate == "promotion"][-1]
    queries.append_history(
        connection,
        at=at,
        model=version.model,
        action="stage" if version.state == "staging" else "unstage",
        from_version=None,
        to_version=version.number,
        actor=actor,
        reason=f"outcome of the promotion gate: {receipt.outcome}",
        receipt=receipt.digest,
        revision=None,
    )
