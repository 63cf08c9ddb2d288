"""Receipts and decisions: storing, finding and re-reading evidence, in the caller's transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection

from sluice.base.errors import IntegrityError
from sluice.base.receipts import Receipt
from sluice.registry import admission, log
from sluice.registry.records import LinkedReceipt
from sluice.registry.tables import (
    decisions,
    imported_receipts,
    receipts,
    recordings,
    version_receipts,
)

Judge = Callable[[Sequence[Receipt]], Receipt]
"""Answers a question, told every answer that its model got before, the oldest first."""


def load_linked_receipts(connection: Connection, model: str, number: int) -> list[LinkedReceipt]:
    """Return the receipts of one version, the newest word of each gate last.

    A gate that says the same again has said it later. An answer of the promotion gate keeps the
    place where it was linked: it is given once, and handed over as often as somebody asks.

    Raises:
        IntegrityError: A receipt's content is not what its digest says, or it is not in the log.
    """
    last = sa.select(recordings.c.receipt, sa.func.max(recordings.c.id).label("id"))
    recorded = last.group_by(recordings.c.receipt).subquery()
    rows = connection.execute(
        sa.select(
            receipts.c.digest,
            receipts.c.payload,
            version_receipts.c.id.label("link"),
            recorded.c.id.label("recording"),
        )
        .join(version_receipts, version_receipts.c.receipt == receipts.c.digest)
        .outerjoin(recorded, recorded.c.receipt == receipts.c.digest)
        .where(version_receipts.c.model == model, version_receipts.c.number == number)
    ).all()
    linked = []
    for row in rows:
        receipt = parse_receipt(row.digest, row.payload)
        line = log.find_number(connection, version_receipts, row.link)
        if row.recording is not None and receipt.gate != "promotion":
            line = max(line, log.find_number(connection, recordings, row.recording))
        linked.append(LinkedReceipt(receipt=receipt, line=line))
    return sorted(linked, key=lambda each: each.line)


def save_receipt(connection: Connection, receipt: Receipt, *, at: datetime) -> None:
    """Store a receipt under its digest; the first one of a digest stays."""
    known = sa.select(receipts.c.digest).where(receipts.c.digest == receipt.digest)
    if connection.execute(known).first() is not None:
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
    except sa.exc.IntegrityError:  # another model's writer stored the same one since
        connection.execute(known).one()


def log_receipt(connection: Connection, receipt: Receipt, *, at: datetime) -> None:
    """Store a receipt and note that it is the newest word on its subject."""
    save_receipt(connection, receipt, at=at)
    log.append(connection, recordings, receipt=receipt.digest, recorded_at=at)


def newest_receipt(connection: Connection, gate: str, subject: Mapping[str, str]) -> Receipt | None:
    """Return the receipt of a gate recorded last whose subject agrees in every role given."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(recordings, recordings.c.receipt == receipts.c.digest)
        .where(
            receipts.c.gate == gate,
            # A quick filter only; the roles are compared below.
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
    connection: Connection, found: Iterable[Receipt], *, model: str, number: int, at: datetime
) -> None:
    """Store receipts and tie them to a version, each once; one handed over again is recorded again.

    Except an answer of the promotion gate: that stays where it was given.
    """
    linked = load_linked_receipts(connection, model, number)
    newest = {each.receipt.gate: each.receipt.digest for each in linked}
    known = {each.receipt.digest for each in linked}
    for receipt in found:
        if receipt.digest not in known:
            save_receipt(connection, receipt, at=at)
            log.append(
                connection,
                version_receipts,
                model=model,
                number=number,
                receipt=receipt.digest,
                linked_at=at,
            )
            known.add(receipt.digest)
        elif receipt.gate != "promotion" and newest[receipt.gate] != receipt.digest:
            log_receipt(connection, receipt, at=at)
        newest[receipt.gate] = receipt.digest


def keep_imported(
    connection: Connection, found: Iterable[Receipt], *, model: str, number: int, at: datetime
) -> None:
    """Store the receipts that came with an imported version, where no promotion looks for them."""
    for receipt in {receipt.digest: receipt for receipt in found}.values():
        save_receipt(connection, receipt, at=at)
        log.append(
            connection,
            imported_receipts,
            model=model,
            number=number,
            receipt=receipt.digest,
            imported_at=at,
        )


def load_imported(connection: Connection, model: str, number: int) -> list[Receipt]:
    """Return the receipts that came with a version from another registry, in their order."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(imported_receipts, imported_receipts.c.receipt == receipts.c.digest)
        .where(imported_receipts.c.model == model, imported_receipts.c.number == number)
        .order_by(imported_receipts.c.id)
    )
    return [parse_receipt(row.digest, row.payload) for row in rows]


def load_decision(connection: Connection, question: Mapping[str, str]) -> Receipt | None:
    """Return the newest answer to a question; columns left out may have any value."""
    row = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(*(decisions.c[column] == value for column, value in question.items()))
        .order_by(decisions.c.id.desc())
    ).first()
    return None if row is None else parse_receipt(row.digest, row.payload)


def load_decisions(connection: Connection, model: str) -> list[Receipt]:
    """Return every answer a model got, oldest first."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(decisions.c.model == model)
        .order_by(decisions.c.id)
    )
    return [parse_receipt(row.digest, row.payload) for row in rows]


def count_decisions(connection: Connection, model: str) -> int:
    """Return how many answers a model got."""
    counted = sa.select(sa.func.count()).where(decisions.c.model == model)
    return int(connection.execute(counted).scalar_one())


def decide(connection: Connection, model: str, receipt: Receipt, *, at: datetime) -> Receipt:
    """File the answer to the question in the receipt's subject, unless there is one; return it.

    The caller holds the model's lock.

    Raises:
        ContractError: The subject lacks candidate, reference or window.
    """
    question = admission.question(receipt.subject)
    standing = load_decision(connection, {"model": model} | question)
    if standing is not None:
        return standing
    log_receipt(connection, receipt, at=at)
    log.append(
        connection, decisions, model=model, **question, receipt=receipt.digest, recorded_at=at
    )
    return receipt


def require_decided(connection: Connection, model: str, receipt: Receipt, *, at: datetime) -> None:
    """File an answer that was given elsewhere, unless the question has one already.

    The caller holds the model's lock.

    Raises:
        ContractError: The question was answered otherwise, or the receipt does not say what it is.
    """
    admission.require_standing(decide(connection, model, receipt, at=at), receipt)


def parse_receipt(digest: str, payload: str) -> Receipt:
    """Return a stored receipt, checked against its digest."""
    try:
        receipt = Receipt.model_validate_json(payload)
        content = receipt.digest
    except ValidationError as error:
        content = f"unreadable, {error.error_count()} fields"
    if content != digest:
        raise IntegrityError(
            f"Receipt {digest[:12]} is filed under another digest than its content has "
            f"({content[:30]}).",
            cause="The ledger's database was edited by hand or damaged.",
            fix="Restore the database from a backup, or run the gate again.",
        )
    return receipt
