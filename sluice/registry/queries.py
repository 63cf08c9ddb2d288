"""Reads and writes models, versions, pointer and history in the caller's transaction."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection, Row

from sluice.base.errors import IntegrityError
from sluice.base.settings import Record
from sluice.registry import log
from sluice.registry.evidence import parse_receipt
from sluice.registry.lineage import Lineage
from sluice.registry.records import (
    HistoryAction,
    HistoryEntry,
    ProductionPointer,
    Version,
    VersionState,
)
from sluice.registry.tables import (
    PRODUCTION,
    history,
    local_lineages,
    models,
    pointers,
    receipts,
    version_receipts,
    versions,
)

R = TypeVar("R", bound=Record)

MAX_VERSION_NUMBER = 2**31 - 1
"""Maximum version number that the column can store in PostgreSQL. A larger number is not queried,
because PostgreSQL would reject the query."""


def model_names(connection: Connection) -> list[str]:
    """Return the names of all models, sorted."""
    return list(connection.execute(sa.select(models.c.name).order_by(models.c.name)).scalars())


def lock_model(connection: Connection, model: str, *, at: datetime) -> None:
    """Lock a model against concurrent writers, and create it if it does not exist."""
    query = sa.select(models.c.name).where(models.c.name == model).with_for_update()
    if connection.execute(query).first() is not None:
        return
    try:
        with connection.begin_nested():
            log.append(connection, models, name=model, created_at=at)
            connection.execute(
                sa.insert(pointers).values(model=model, name=PRODUCTION, version=None, revision=0)
            )
    except sa.exc.IntegrityError:  # another process created the model concurrently; lock it
        connection.execute(query).one()


def load_pointer(connection: Connection, model: str) -> ProductionPointer:
    """Return the production pointer of a model; for an unknown model, a pointer to no version."""
    row = connection.execute(
        sa.select(pointers.c.version, pointers.c.revision).where(
            pointers.c.model == model, pointers.c.name == PRODUCTION
        )
    ).first()
    if row is None:
        return ProductionPointer(version=None, revision=0)
    return _parse(ProductionPointer, f"The pointer of {model}", row._asdict())


def move_pointer(
    connection: Connection, model: str, *, to_version: int, expected_revision: int
) -> bool:
    """Move the production pointer to a version if the pointer's revision is unchanged.

    Args:
        connection: Connection of the caller's transaction.
        model: Name of the model.
        to_version: Number of the new production version.
        expected_revision: Revision that the pointer must have.

    Returns:
        Whether the pointer was moved.
    """
    result = connection.execute(
        sa.update(pointers)
        .where(
            pointers.c.model == model,
            pointers.c.name == PRODUCTION,
            pointers.c.revision == expected_revision,
        )
        .values(version=to_version, revision=expected_revision + 1)
    )
    return result.rowcount == 1


def load_history(connection: Connection, model: str) -> list[HistoryEntry]:
    """Return the history of one model, oldest first.

    Raises:
        IntegrityError: An entry cannot be read.
    """
    rows = connection.execute(
        sa.select(history).where(history.c.model == model).order_by(history.c.id)
    )
    return [parse_entry(row) for row in rows]


def parse_entry(row: Row[Any]) -> HistoryEntry:
    """Parse a row of the history.

    Raises:
        IntegrityError: The row cannot be read.
    """
    return _parse(HistoryEntry, f"Entry {row.id} of the history", row._asdict())


def append_history(
    connection: Connection,
    *,
    at: datetime,
    model: str,
    action: HistoryAction,
    from_version: int | None,
    to_version: int,
    actor: str,
    reason: str,
    receipt: str | None,
    revision: int | None,
) -> None:
    """Append one entry to the history."""
    log.append(
        connection,
        history,
        at=at,
        model=model,
        action=action,
        from_version=from_version,
        to_version=to_version,
        actor=actor,
        reason=reason,
        receipt=receipt,
        revision=revision,
    )


def find_history_line(connection: Connection, entry: HistoryEntry) -> int:
    """Return the number of the log line of a history entry."""
    return log.find_line_number(connection, history, entry.id)


def last_move(connection: Connection, model: str) -> HistoryEntry | None:
    """Return the history entry of the last move of the pointer; None if it never moved."""
    query = sa.select(history).where(history.c.model == model, history.c.revision.is_not(None))
    row = connection.execute(query.order_by(history.c.id.desc())).first()
    return None if row is None else parse_entry(row)


def load_versions(connection: Connection, model: str) -> list[Version]:
    """Return the versions of one model, sorted by number, each with its state."""
    query = sa.select(versions.c.number).where(versions.c.model == model)
    numbers = connection.execute(query.order_by(versions.c.number)).scalars().all()
    return [load_version(connection, model, number) for number in numbers]


def find_version(
    connection: Connection, model: str, *, number: int | None = None, candidate: str | None = None
) -> Version | None:
    """Return the version with this number or this candidate; None if it does not exist."""
    if number is not None and number > MAX_VERSION_NUMBER:
        return None
    condition = versions.c.number == number
    if number is None:
        condition = versions.c.candidate == candidate
    row = connection.execute(
        sa.select(versions.c.number).where(versions.c.model == model, condition)
    ).first()
    return None if row is None else load_version(connection, model, row.number)


def load_version(connection: Connection, model: str, number: int) -> Version:
    """Return an existing version with its state.

    Raises:
        IntegrityError: The version or its lineage cannot be read.
    """
    row = connection.execute(
        sa.select(versions).where(versions.c.model == model, versions.c.number == number)
    ).one()
    local_lineage_row = connection.execute(_select_local_lineage(model, number)).first()
    lineage = _parse_lineage((local_lineage_row or row).lineage, row.model, row.number)
    state = _derive_state(connection, row.model, row.number, row.candidate)
    version_name = f"{row.model} version {row.number}"
    derived_fields: dict[str, Any] = {"state": state, "lineage": lineage}
    if local_lineage_row is None:
        derived_fields |= _load_import_fields(connection, model, number)
    else:
        derived_fields["is_imported"] = False
    return _parse(Version, version_name, {**row._mapping, **derived_fields})


def candidate_of(connection: Connection, model: str, number: int) -> str:
    """Return the candidate digest of an existing version."""
    query = sa.select(versions.c.candidate).where(
        versions.c.model == model, versions.c.number == number
    )
    return str(connection.execute(query).scalar_one())


def _load_import_fields(connection: Connection, model: str, number: int) -> dict[str, Any]:
    """Return the fields of ``Version`` about its import, from the history.

    This function is not called for a version that was trained locally, even if it was imported
    before.
    """
    rows = connection.execute(
        sa.select(history.c.action, history.c.reason)
        .where(
            history.c.model == model,
            history.c.to_version == number,
            history.c.action.in_(("import", "accept", "trust")),
        )
        .order_by(history.c.id)
    ).all()
    return {
        "is_imported": any(row.action == "import" for row in rows),
        "accepted_code": tuple(row.reason for row in rows if row.action == "accept"),
        "trusted_code": tuple(row.reason for row in rows if row.action == "trust"),
    }


def require_version_matches_log(connection: Connection, version: Version) -> None:
    """Reject a version whose rows were changed or removed after they were written.

    Raises:
        IntegrityError: A row does not match its log line, or is missing.
    """
    query = sa.select(versions).where(
        versions.c.model == version.model, versions.c.number == version.number
    )
    log.require_row_matches_log(connection, versions, connection.execute(query).one())
    local_lineage_row = connection.execute(
        _select_local_lineage(version.model, version.number)
    ).first()
    if local_lineage_row is not None:
        log.require_row_matches_log(connection, local_lineages, local_lineage_row)
    else:
        # The row of a local training must not have been removed, because the imported lineage
        # would then be used again.
        log.require_never_logged(connection, local_lineages, [version.model, version.number])


def insert_version(connection: Connection, lineage: Lineage, *, at: datetime) -> int:
    """Insert a new version and return its number. The caller must hold the lock of the model."""
    max_number = connection.execute(
        sa.select(sa.func.max(versions.c.number)).where(versions.c.model == lineage.model)
    ).scalar()
    number = 1 if max_number is None else int(max_number) + 1
    log.append(
        connection,
        versions,
        model=lineage.model,
        number=number,
        candidate=lineage.candidate,
        lineage=lineage.model_dump_json(),
        registered_at=at,
    )
    return number


def insert_local_lineage(
    connection: Connection, version: Version, lineage: Lineage, *, at: datetime
) -> None:
    """Store the lineage of the local training of an imported version.

    The caller must hold the lock of the model.
    """
    log.append(
        connection,
        local_lineages,
        model=version.model,
        number=version.number,
        lineage=lineage.model_dump_json(),
        registered_at=at,
    )


def _select_local_lineage(model: str, number: int) -> sa.Select[tuple[Any, ...]]:
    """Select the lineage of the local training of a version that was imported before."""
    return sa.select(local_lineages).where(
        local_lineages.c.model == model, local_lineages.c.number == number
    )


def _parse_lineage(text: str, model: str, number: int) -> Lineage:
    try:
        return Lineage.model_validate_json(text)
    except ValidationError as error:
        raise unreadable_error(f"The lineage of {model} version {number}", error) from None


def _parse(record_class: type[R], row_name: str, values: Mapping[str, Any]) -> R:
    try:
        return record_class(**values)
    except ValidationError as error:
        raise unreadable_error(row_name, error) from None


def unreadable_error(row_name: str, error: ValidationError) -> IntegrityError:
    """Return the error for a stored row that cannot be parsed."""
    first_error = error.errors()[0]
    return IntegrityError(
        f"{row_name} cannot be read: {'.'.join(str(part) for part in first_error['loc'])}: "
        f"{first_error['msg']}.",
        cause="The registry's database was edited manually or damaged.",
        fix="Restore the database from a backup.",
    )


def _derive_state(connection: Connection, model: str, number: int, candidate: str) -> VersionState:
    if load_pointer(connection, model).version == number:
        return "production"
    moves_to_version = sa.select(history.c.id).where(
        history.c.model == model, history.c.to_version == number, history.c.revision.is_not(None)
    )
    if connection.execute(moves_to_version).first() is not None:
        return "archived"
    newest_row = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(version_receipts, version_receipts.c.receipt == receipts.c.digest)
        .where(
            version_receipts.c.model == model,
            version_receipts.c.number == number,
            receipts.c.gate == "promotion",
        )
        .order_by(version_receipts.c.id.desc())
    ).first()
    has_passed = newest_row is not None and _is_passed_receipt(
        newest_row.digest, newest_row.payload, candidate
    )
    return "staging" if has_passed else "dev"


def _is_passed_receipt(digest: str, payload: str, candidate: str) -> bool:
    try:
        receipt = parse_receipt(digest, payload)
        return receipt.passed and receipt.subject.get("candidate") == candidate
    except IntegrityError:  # Ledger.verify and Ledger.promote report the damaged receipt
        return False
