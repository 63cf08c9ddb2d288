"""Audit trail: all changes of the registry and all rejected attempts, in time order."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection, Row

from sluice.base.settings import Record
from sluice.registry import evidence, log, log_signatures, queries, refusals, rollout_rows
from sluice.registry.approval import APPROVAL_GATE
from sluice.registry.keyring import Keyring
from sluice.registry.tables import (
    history,
    receipts,
    rollout_transitions,
    signatures,
    version_receipts,
)

SignatureState = Literal[
    "signed", "bridged", "unsigned", "unknown_key", "invalid", "not_checked", "not_logged"
]


class AuditRecord(Record):
    """A change of the registry, or a rejected attempt."""

    at: datetime
    outcome: Literal["accepted", "refused"]
    action: str = Field(
        description="register, import, accept, trust, stage, unstage, promote, rollback, approve "
        "or sign; or, for a transition of a rollout, 'rollout OUTCOME' if it was accepted and "
        "'rollout' if it was rejected."
    )
    model: str = Field(description="Name of the model; empty for a signature of the log.")
    from_version: int | None
    to_version: int | None
    actor: str = Field(description="Name that the actor gave; a signature may prove it.")
    reason: str
    receipt: str | None = Field(
        description="Digest of the receipt that the change used or added; None without one."
    )
    line: int | None = Field(
        description="Number of the log line; None for a rejected attempt or a row without a line."
    )
    signature: SignatureState | None = Field(
        description="How the log line is signed. signed: by a known key, when the line was "
        "written; bridged: by a known key, later, after a person reviewed unsigned lines; "
        "unsigned: not at all; unknown_key: by an unknown key; invalid: with an invalid signature; "
        "not_checked: no key was given for the verification; not_logged: the row has no log line, "
        "because Sluice did not write it. None for a rejected attempt."
    )
    key_id: str | None = Field(
        description="Id of the key that signed the line; for a rejected attempt, of the caller's "
        "key. None without a key."
    )
    error: str | None = Field(None, description="Class of the error of a rejected attempt.")
    refused_because: str | None = None


_SortedSignatures = Sequence[tuple[int, SignatureState, str]]
"""Last covered line, state and key id of each signature, sorted by the line."""


@dataclass(frozen=True, slots=True)
class _Signatures:
    """Signatures of the log, separated into valid signatures and all others."""

    valid_signatures: _SortedSignatures
    other_signatures: _SortedSignatures

    def fields_of(self, line_number: int | None) -> dict[str, Any]:
        """Return the fields of an ``AuditRecord`` that say how a log line is signed."""
        if line_number is None:
            return {"line": None, "signature": "not_logged", "key_id": None}
        # Valid signatures come first, because anybody can add an invalid signature.
        for sorted_signatures in (self.valid_signatures, self.other_signatures):
            index = bisect.bisect_left(
                sorted_signatures, line_number, key=lambda signature: signature[0]
            )
            if index < len(sorted_signatures):
                _, state, key_id = sorted_signatures[index]
                return {"line": line_number, "signature": state, "key_id": key_id}
        return {"line": line_number, "signature": "unsigned", "key_id": None}


def load(
    connection: Connection, *, keys: Keyring | None, since: datetime | None
) -> list[AuditRecord]:
    """Return changes and rejected attempts, oldest first.

    Args:
        connection: Connection to the registry.
        keys: Keyring that verifies the signatures; None to skip verification.
        since: Start time; None to return all.

    Raises:
        IntegrityError: A row cannot be read.
    """
    all_signatures = _load_signatures(connection, keys)
    records = [
        *_history_records(connection, all_signatures),
        *_transition_records(connection, all_signatures),
        *_approval_records(connection, all_signatures),
        *_bridge_records(connection, keys),
        *(
            AuditRecord(
                outcome="refused", receipt=None, line=None, signature=None, **attempt.model_dump()
            )
            for attempt in refusals.load(connection, since=since)
        ),
    ]
    selected_records = [record for record in records if since is None or record.at >= since]
    return sorted(selected_records, key=lambda record: (record.at, record.line or 0))


def _load_signatures(connection: Connection, keys: Keyring | None) -> _Signatures:
    query = log_signatures.select_raw().order_by(signatures.c.line)
    rows = connection.execute(query).all()
    valid_signatures: list[tuple[int, SignatureState, str]] = []
    other_signatures: list[tuple[int, SignatureState, str]] = []
    for row in rows:
        if isinstance(row.line, int):  # SQLite may store text in the column
            state = _signature_state(connection, keys, row)
            is_valid = state in ("signed", "bridged")
            sorted_signatures = valid_signatures if is_valid else other_signatures
            sorted_signatures.append((row.line, state, row.key_id))
    return _Signatures(valid_signatures=valid_signatures, other_signatures=other_signatures)


def _signature_state(connection: Connection, keys: Keyring | None, row: Row[Any]) -> SignatureState:
    if keys is None:
        return "not_checked"
    if row.key_id not in keys.known_keys:
        return "unknown_key"
    if log_signatures.find_signature_problem(connection, keys, row) is not None:
        return "invalid"
    return "bridged" if row.kind == "bridge" else "signed"


def _history_records(connection: Connection, all_signatures: _Signatures) -> list[AuditRecord]:
    line_numbers, records = log.load_line_numbers(connection, history), []
    for model in queries.model_names(connection):
        for entry in queries.load_history(connection, model):
            values = entry.model_dump(exclude={"id", "revision"})
            line_number = line_numbers.get(log.encode_key([entry.id]))
            records.append(
                AuditRecord(outcome="accepted", **values, **all_signatures.fields_of(line_number))
            )
    return records


def _transition_records(connection: Connection, all_signatures: _Signatures) -> list[AuditRecord]:
    line_numbers = log.load_line_numbers(connection, rollout_transitions)
    return [
        AuditRecord(
            at=transition.at,
            outcome="accepted",
            action=f"rollout {transition.outcome}",
            model=model,
            from_version=None,
            to_version=transition.rollout.version,
            actor=transition.actor,
            reason=transition.reason,
            receipt=None,
            **all_signatures.fields_of(
                line_numbers.get(log.encode_key([rollout_id, transition.rollout.revision]))
            ),
        )
        for model in queries.model_names(connection)
        for rollout_id in rollout_rows.load_rollout_ids(connection, model)
        for transition in rollout_rows.load_transitions(connection, rollout_id)
    ]


def _approval_records(connection: Connection, all_signatures: _Signatures) -> list[AuditRecord]:
    """Return the approvals that are linked to a version but have no history entry."""
    select_receipts_in_history = sa.select(history.c.receipt).where(
        history.c.action == "approve", history.c.receipt.is_not(None)
    )
    query = (
        sa.select(version_receipts, receipts.c.payload)
        .join(receipts, receipts.c.digest == version_receipts.c.receipt)
        .where(
            receipts.c.gate == APPROVAL_GATE,
            receipts.c.digest.not_in(select_receipts_in_history),
        )
    )
    line_numbers, records = log.load_line_numbers(connection, version_receipts), []
    for row in connection.execute(query):
        receipt = evidence.parse_receipt(row.receipt, row.payload)
        records.append(
            AuditRecord(
                at=row.linked_at,
                outcome="accepted",
                action="approve",
                model=row.model,
                from_version=None,
                to_version=row.number,
                actor=str(receipt.evidence.get("actor", "")),
                reason=receipt.reason,
                receipt=row.receipt,
                **all_signatures.fields_of(line_numbers.get(log.encode_key([row.id]))),
            )
        )
    return records


def _bridge_records(connection: Connection, keys: Keyring | None) -> list[AuditRecord]:
    """Return a record for each bridge signature, by which a person later signed unsigned lines."""
    query = log_signatures.select_raw().add_columns(signatures.c.signed_at.label("at"))
    return [
        AuditRecord(
            at=row.at,
            outcome="accepted",
            action="sign",
            model="",
            from_version=None,
            to_version=None,
            actor=str(row.actor),
            reason=f"unsigned lines of the log after {row.since}, up to {row.line}",
            receipt=None,
            line=row.line,
            # State of this bridge signature. The line may have further signatures.
            signature=_signature_state(connection, keys, row),
            key_id=row.key_id,
        )
        for row in connection.execute(query.where(signatures.c.kind == "bridge"))
        if isinstance(row.line, int)
    ]
