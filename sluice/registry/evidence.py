"""Stores, finds and verifies receipts and decisions, in the caller's transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection

from sluice.base.errors import IntegrityError
from sluice.base.receipts import Receipt
from sluice.registry import log, validation
from sluice.registry.records import LinkedReceipt
from sluice.registry.tables import (
    decisions,
    imported_receipts,
    receipts,
    recordings,
    version_receipts,
)

DecisionFunction = Callable[[Sequence[Receipt]], Receipt]
"""Function that gets the earlier decisions on a model, oldest first, and returns the receipt of its
decision."""


def load_linked_receipts(connection: Connection, model: str, number: int) -> list[LinkedReceipt]:
    """Return the receipts of one version in the order in which they took effect, latest last.

    A promotion receipt took effect when it was linked to the version, because a decision is made
    only once. Another receipt took effect when it was linked or last recorded, whichever is later.

    Raises:
        IntegrityError: The content of a receipt does not match its digest, or a row has no log
            line.
    """
    select_last_ids = sa.select(recordings.c.receipt, sa.func.max(recordings.c.id).label("id"))
    last_recording = select_last_ids.group_by(recordings.c.receipt).subquery()
    rows = connection.execute(
        sa.select(
            receipts.c.digest,
            receipts.c.payload,
            version_receipts.c.id.label("link_id"),
            last_recording.c.id.label("recording_id"),
        )
        .join(version_receipts, version_receipts.c.receipt == receipts.c.digest)
        .outerjoin(last_recording, last_recording.c.receipt == receipts.c.digest)
        .where(version_receipts.c.model == model, version_receipts.c.number == number)
    ).all()
    linked_receipts = []
    for row in rows:
        receipt = parse_receipt(row.digest, row.payload)
        line_number = log.find_line_number(connection, version_receipts, row.link_id)
        if row.recording_id is not None and receipt.gate != "promotion":
            recording_line = log.find_line_number(connection, recordings, row.recording_id)
            line_number = max(line_number, recording_line)
        linked_receipts.append(LinkedReceipt(receipt=receipt, line_number=line_number))
    return sorted(linked_receipts, key=lambda each: each.line_number)


def save_receipt(connection: Connection, receipt: Receipt, *, at: datetime) -> None:
    """Store a receipt under its digest, unless it is stored already."""
    select_existing = sa.select(receipts.c.digest).where(receipts.c.digest == receipt.digest)
    if connection.execute(select_existing).first() is not None:
        return
    try:
        with connection.begin_nested():
            log.append(
                connection,
                receipts,
                digest=receipt.digest,
                gate=receipt.gate,
                payload=receipt.model_dump_json(),
                recorded_at=at,
            )
    except sa.exc.IntegrityError:  # a writer of another model stored the receipt concurrently
        connection.execute(select_existing).one()


def record_receipt(connection: Connection, receipt: Receipt, *, at: datetime) -> None:
    """Store a receipt, and record it as the latest receipt about its subject."""
    save_receipt(connection, receipt, at=at)
    log.append(connection, recordings, receipt=receipt.digest, recorded_at=at)


def newest_receipt(connection: Connection, gate: str, subject: Mapping[str, str]) -> Receipt | None:
    """Return the last recorded receipt of a gate whose subject contains ``subject``, or None."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(recordings, recordings.c.receipt == receipts.c.digest)
        .where(
            receipts.c.gate == gate,
            # A fast filter for the digests. The loop below also compares their roles.
            *(receipts.c.payload.contains(digest, autoescape=True) for digest in subject.values()),
        )
        .order_by(recordings.c.id.desc())
    )
    for row in rows:
        receipt = parse_receipt(row.digest, row.payload)
        if subject.items() <= receipt.subject.items():
            return receipt
    return None


def link_receipts(
    connection: Connection,
    new_receipts: Iterable[Receipt],
    *,
    model: str,
    number: int,
    at: datetime,
) -> None:
    """Store receipts and link each of them to a version once.

    A receipt that is linked already, but is not the latest of its gate, is recorded again as the
    latest. A promotion receipt is not recorded again, because its decision is final.
    """
    linked_receipts = load_linked_receipts(connection, model, number)
    newest_digests = {each.receipt.gate: each.receipt.digest for each in linked_receipts}
    linked_digests = {each.receipt.digest for each in linked_receipts}
    for receipt in new_receipts:
        if receipt.digest not in linked_digests:
            save_receipt(connection, receipt, at=at)
            log.append(
                connection,
                version_receipts,
                model=model,
                number=number,
                receipt=receipt.digest,
                linked_at=at,
            )
            linked_digests.add(receipt.digest)
        elif receipt.gate != "promotion" and newest_digests[receipt.gate] != receipt.digest:
            record_receipt(connection, receipt, at=at)
        newest_digests[receipt.gate] = receipt.digest


def save_imported_receipts(
    connection: Connection,
    new_receipts: Iterable[Receipt],
    *,
    model: str,
    number: int,
    at: datetime,
) -> None:
    """Store the receipts of an imported version separately, so that no promotion uses them."""
    for receipt in {receipt.digest: receipt for receipt in new_receipts}.values():
        save_receipt(connection, receipt, at=at)
        log.append(
            connection,
            imported_receipts,
            model=model,
            number=number,
            receipt=receipt.digest,
            imported_at=at,
        )


def load_imported_receipts(connection: Connection, model: str, number: int) -> list[Receipt]:
    """Return the receipts that were imported with a version, in the order of the import."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(imported_receipts, imported_receipts.c.receipt == receipts.c.digest)
        .where(imported_receipts.c.model == model, imported_receipts.c.number == number)
        .order_by(imported_receipts.c.id)
    )
    return [parse_receipt(row.digest, row.payload) for row in rows]


def load_decision(connection: Connection, column_values: Mapping[str, str]) -> Receipt | None:
    """Return the latest decision that has the given values in its columns; None without one."""
    row = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(*(decisions.c[column] == value for column, value in column_values.items()))
        .order_by(decisions.c.id.desc())
    ).first()
    return None if row is None else parse_receipt(row.digest, row.payload)


def load_decisions(connection: Connection, model: str) -> list[Receipt]:
    """Return all decisions on a model's candidates, oldest first."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(decisions.c.model == model)
        .order_by(decisions.c.id)
    )
    return [parse_receipt(row.digest, row.payload) for row in rows]


def count_decisions(connection: Connection, model: str) -> int:
    """Return the number of decisions on a model's candidates."""
    count = sa.select(sa.func.count()).where(decisions.c.model == model)
    return int(connection.execute(count).scalar_one())


def store_decision(
    connection: Connection, model: str, receipt: Receipt, *, at: datetime
) -> Receipt:
    """Store a decision unless there is one on its subject already; return the stored decision.

    The caller must hold the lock of the model.

    Raises:
        ContractError: The subject lacks candidate, reference or window.
    """
    key = validation.decision_key(receipt.subject)
    decision = load_decision(connection, {"model": model} | key)
    if decision is not None:
        return decision
    record_receipt(connection, receipt, at=at)
    log.append(connection, decisions, model=model, **key, receipt=receipt.digest, recorded_at=at)
    return receipt


def store_external_decision(
    connection: Connection, model: str, receipt: Receipt, *, at: datetime
) -> None:
    """Store a decision that a caller passes, unless it is stored; reject a contradictory one.

    The caller must hold the lock of the model.

    Raises:
        ContractError: The stored decision on the subject differs; or the subject lacks candidate,
            reference or window.
    """
    validation.require_same_decision(store_decision(connection, model, receipt, at=at), receipt)


def parse_receipt(digest: str, payload: str) -> Receipt:
    """Parse a stored receipt and verify its digest.

    Raises:
        IntegrityError: The content cannot be parsed, or has another digest.
    """
    try:
        receipt = Receipt.model_validate_json(payload)
        actual_digest = receipt.digest
    except ValidationError as error:
        actual_digest = f"{error.error_count()} invalid fields"
    if actual_digest != digest:
        raise IntegrityError(
            f"The content of receipt {digest[:12]} does not match its digest "
            f"({actual_digest[:30]}).",
            cause="The registry's database was edited manually or damaged.",
            fix="Restore the database from a backup.",
        )
    return receipt
