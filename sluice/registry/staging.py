"""dev -> staging and back: the state follows the receipts, and the history says when (REG-1)."""

from datetime import datetime

from sqlalchemy import Connection

from sluice.registry import evidence, queries
from sluice.registry.records import State, Version


def note_change(
    connection: Connection, version: Version, *, before: State, at: datetime, actor: str
) -> None:
    """Write a line of history when new receipts moved a version between dev and staging."""
    if {before, version.state} != {"dev", "staging"}:
        return
    linked = evidence.load_linked_receipts(connection, version.model, version.number)
    receipt = [r.receipt for r in linked if r.receipt.gate == "promotion"][-1]
    queries.append_history(
        connection,
        at=at,
        model=version.model,
        action="stage" if version.state == "staging" else "unstage",
        from_version=None,
        to_version=version.number,
        actor=actor,
        reason=f"the promotion gate said {receipt.outcome}",
        receipt=receipt.digest,
        revision=None,
    )
