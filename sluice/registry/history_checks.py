"""Checks that the history, the promotion receipts and the production pointer agree."""

from collections.abc import Collection, Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.base.digests import short
from sluice.base.errors import IntegrityError
from sluice.base.pluralize import pluralize
from sluice.registry import queries
from sluice.registry.evidence import parse_receipt
from sluice.registry.findings import finding_from_error
from sluice.registry.lineage import BASELINE
from sluice.registry.records import HistoryEntry, RegistryFinding
from sluice.registry.rollback_targets import production_trail
from sluice.registry.tables import receipts, version_receipts, versions


def check_moves(
    connection: Connection, model: str, version_numbers: Collection[int] | None = None
) -> Iterator[RegistryFinding]:
    """Follow the moves in the history of a model, and yield every inconsistency.

    Each move of the production pointer must start at the version at which the previous move ended.
    Each promotion must have a valid receipt. The last move must match the pointer.

    Args:
        connection: Connection to the registry.
        model: Name of the model.
        version_numbers: Versions whose last promotion is checked against its receipt; None to check
            all promotions.

    Cost:
        Reads the history of the model, and all receipts of the versions whose promotions are
        checked.
    """
    try:
        entries = queries.load_history(connection, model)
    except IntegrityError as error:
        yield finding_from_error(model, None, "history", error)
        return
    try:
        pointer = queries.load_pointer(connection, model)
    except IntegrityError as error:
        yield finding_from_error(model, None, "pointer", error)
        return
    moves = [entry for entry in entries if entry.action in ("promote", "rollback")]
    for previous_move, move in zip((None, *moves), moves, strict=False):
        yield from _check_move(move, previous_move)
    promotions = [move for move in moves if move.action == "promote"]
    if version_numbers is not None:
        last_promotion_by_version = {move.to_version: move for move in promotions}
        promotions = [
            last_promotion_by_version[number]
            for number in dict.fromkeys(version_numbers)
            if number in last_promotion_by_version
        ]
    yield from _check_receipts(connection, model, promotions)
    last_version = moves[-1].to_version if moves else None
    if pointer.version != last_version or pointer.revision != len(moves):
        yield RegistryFinding(
            model=model,
            version=pointer.version,
            problem="pointer",
            what=f"{model}: the pointer is at {_version_text(pointer.version)} after "
            f"{pluralize(pointer.revision, 'move')}, but the history ends with "
            f"{_version_text(last_version)} after {pluralize(len(moves), 'move')}.",
            fix="The database was edited manually: restore it from a backup.",
        )
    trail = production_trail(entries)
    if moves and (not trail or trail[-1] != last_version):
        yield RegistryFinding(
            model=model,
            version=last_version,
            problem="history",
            what=f"{model}: a rollback in the history does not lead to the version that was in "
            "production before.",
            fix="The database was edited manually: restore it from a backup.",
        )


def _check_move(
    move: HistoryEntry, previous_move: HistoryEntry | None
) -> Iterator[RegistryFinding]:
    """Check that a move starts where the move before it ended."""
    expected_start = None if previous_move is None else previous_move.to_version
    expected_revision = (
        1 if previous_move is None or previous_move.revision is None else previous_move.revision + 1
    )
    problems = []
    if move.from_version != expected_start:
        problems.append(
            f"it starts from {_version_text(move.from_version)}, "
            f"not {_version_text(expected_start)}"
        )
    if move.revision != expected_revision:
        problems.append(f"it has move number {move.revision}, not {expected_revision}")
    if move.action == "promote" and move.receipt is None:
        problems.append("it names no promotion receipt")
    if problems:
        yield RegistryFinding(
            model=move.model,
            version=move.to_version,
            problem="history",
            what=f"{move.model}: history entry {move.id} ({move.action} to version "
            f"{move.to_version}) is inconsistent: {'; '.join(problems)}.",
            fix="The database was edited manually: restore it from a backup.",
        )


def _check_receipts(
    connection: Connection, model: str, promotions: Sequence[HistoryEntry]
) -> Iterator[RegistryFinding]:
    """Check that each promotion has a passed receipt about its version and the replaced version."""
    query = sa.select(versions.c.number, versions.c.candidate).where(versions.c.model == model)
    candidates = {row.number: row.candidate for row in connection.execute(query)}
    promoted_numbers = {move.to_version for move in promotions}
    payloads = {
        (row.number, row.digest): row.payload
        for row in connection.execute(
            sa.select(version_receipts.c.number, receipts.c.digest, receipts.c.payload)
            .join(receipts, receipts.c.digest == version_receipts.c.receipt)
            .where(
                version_receipts.c.model == model, version_receipts.c.number.in_(promoted_numbers)
            )
        )
    }
    for move in promotions:
        if move.receipt is None:  # _check_move reports it
            continue
        payload = payloads.get((move.to_version, move.receipt))
        reference = BASELINE if move.from_version is None else candidates.get(move.from_version)
        expected_subject = {"candidate": candidates.get(move.to_version), "reference": reference}
        problem = (
            "which is not a promotion receipt of that version"
            if payload is None
            else _find_receipt_problem(move.receipt, payload, expected_subject)
        )
        if problem:
            yield RegistryFinding(
                model=model,
                version=move.to_version,
                problem="history",
                what=f"{model}: history entry {move.id} promotes version {move.to_version} with "
                f"receipt {short(move.receipt)}, {problem}.",
                fix="The database was edited manually: restore it from a backup.",
            )


def _find_receipt_problem(
    digest: str, payload: str, expected_digests: dict[str, str | None]
) -> str:
    """Return why a receipt does not allow a promotion, as a clause; "" if it does.

    Args:
        digest: Digest of the receipt.
        payload: Stored content of the receipt.
        expected_digests: Digests that the receipt's subject must have, by role.
    """
    try:
        receipt = parse_receipt(digest, payload)
    except IntegrityError:  # the check of the version's receipts reports the damaged receipt
        return ""
    if receipt.gate != "promotion":
        return f"which is a receipt of the {receipt.gate} gate"
    if not receipt.passed:
        return f"whose outcome is {receipt.outcome}"
    wrong_roles = [
        role
        for role, expected_digest in expected_digests.items()
        if receipt.subject.get(role) != expected_digest
    ]
    return f"which is about another {' and '.join(wrong_roles)}" if wrong_roles else ""


def _version_text(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"
