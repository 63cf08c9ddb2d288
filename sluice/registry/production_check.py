"""Verifies what the registry says about the production of a model before it is used or changed.

Pointer, history, log and receipts must agree about the versions in use. ``sluice registry verify``
makes the same checks for all versions, and also reads the artifacts. Artifacts are not read here,
because their digests are verified when weights are loaded.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.base.digests import digest_json
from sluice.base.errors import IntegrityError, RegistryInconsistent, SluiceError
from sluice.registry import append_only, log, log_verification, queries, rollout_rows, table_checks
from sluice.registry.evidence import parse_receipt
from sluice.registry.findings import finding_from_error
from sluice.registry.history_checks import check_moves
from sluice.registry.log_verification import RowSelection
from sluice.registry.records import RegistryFinding, Version
from sluice.registry.tables import (
    decisions,
    history,
    local_lineages,
    log_head,
    models,
    pointers,
    receipts,
    rollout_heads,
    rollout_transitions,
    rollouts,
    version_receipts,
    versions,
)

_FIX = "The database was edited manually: restore it from a backup."


def require_consistent(connection: Connection, model: str, version_numbers: Sequence[int]) -> None:
    """Reject a model if registry entries about its pointer or some versions are inconsistent.

    Args:
        connection: Connection of the caller's transaction.
        model: Name of the model.
        version_numbers: Versions that are about to be used.

    Raises:
        RegistryInconsistent: The message contains the first finding, and the command that lists
            all findings.
    """
    findings = check(connection, model, version_numbers)
    if not findings:
        return
    first_finding, num_others = findings[0], len(findings) - 1
    error = RegistryInconsistent(
        f"{first_finding.what}{f' Further problems found: {num_others}.' if num_others else ''}",
        cause=f"The registry is inconsistent about {model}, so the version is not used.",
        fix=f"{first_finding.fix.rstrip('.')}. To list all findings: sluice registry verify",
    )
    error.num_findings = len(findings)
    raise error


def check(
    connection: Connection, model: str, version_numbers: Sequence[int]
) -> list[RegistryFinding]:
    """Return the findings about a model's pointer and some of its versions; [] if consistent.

    Cost:
        About 40 queries; reads the history of the model, the rows of the versions and the keys of
        all rows.
    """
    findings = list(check_moves(connection, model, version_numbers))
    for number in dict.fromkeys(version_numbers):
        findings += _check_version(connection, model, number)
    findings += check_rollout(connection, model)
    findings += log_verification.check_rows(connection, _select_rows(model, version_numbers))
    findings += log_verification.check_removed_rows(connection)
    findings += append_only.check(connection)
    findings += table_checks.check(connection)
    return findings


def check_production(connection: Connection, model: str) -> list[RegistryFinding]:
    """Return the findings about the served versions: production and a rollout's challenger."""
    return check(connection, model, _load_served_numbers(connection, model))


def require_consistent_production(
    connection: Connection, model: str, *other_version_numbers: int
) -> None:
    """Reject a model if registry entries about its served versions contradict each other.

    Args:
        connection: Connection of the caller's transaction.
        model: Name of the model.
        other_version_numbers: Numbers of further versions to check.

    Raises:
        RegistryInconsistent: See ``require_consistent``.
    """
    served_numbers = _load_served_numbers(connection, model)
    require_consistent(connection, model, [*served_numbers, *other_version_numbers])


def compute_fingerprint(connection: Connection, model: str) -> str:
    """Return a digest that changes with the served versions, their lineage or the end of the log.

    While the digest is unchanged, ``check`` can be skipped for some time. It must still be repeated
    periodically, because the digest does not cover all rows that ``check`` reads.
    """
    select_production = sa.select(pointers.c.version).where(pointers.c.model == model)
    select_last_rollout = sa.select(rollout_heads.c.rollout).where(rollout_heads.c.model == model)
    select_challenger = sa.select(rollouts.c.version).where(rollouts.c.id.in_(select_last_rollout))
    is_served = versions.c.number.in_(sa.union(select_production, select_challenger))
    has_local_lineage = sa.and_(
        local_lineages.c.model == versions.c.model, local_lineages.c.number == versions.c.number
    )
    state_queries: list[sa.Select[Any]] = [
        sa.select(pointers).where(pointers.c.model == model),
        sa.select(
            versions.c.number, versions.c.candidate, versions.c.lineage, local_lineages.c.lineage
        )
        .outerjoin(local_lineages, has_local_lineage)
        .where(versions.c.model == model, is_served)
        .order_by(versions.c.number),
        sa.select(rollout_heads.c.rollout, rollout_heads.c.revision).where(
            rollout_heads.c.model == model
        ),
        sa.select(rollout_transitions.c.payload)
        .where(rollout_transitions.c.rollout.in_(select_last_rollout))
        .order_by(rollout_transitions.c.revision),
        sa.select(log_head.c.lines, log_head.c.digest),
    ]
    # The tables are read before their definitions. In PostgreSQL, reading a table locks it, so
    # nobody can alter it before its definition is read.
    results = [list(connection.execute(query)) for query in state_queries]
    results.append(list(table_checks.load_relations(connection)))
    if connection.dialect.name == "sqlite":  # this number changes with the schema and the triggers
        results.append(list(connection.exec_driver_sql("PRAGMA schema_version")))
    return digest_json([[[str(value) for value in row] for row in rows] for rows in results])


def require_valid_lineage(version: Version) -> None:
    """Reject a version if its lineage was changed after the gates evaluated it."""
    problem = version.lineage.find_contradiction()
    if not problem and version.lineage.candidate != version.candidate:
        problem = (
            f"it is stored as candidate {version.candidate[:12]}, but its lineage names candidate "
            f"{version.lineage.candidate[:12]}"
        )
    if problem:
        raise IntegrityError(
            f"{version.model} version {version.number} differs from what the gates evaluated: "
            f"{problem}.",
            cause="Data, config, settings, code or weights in the lineage were changed after the "
            "gates ran.",
            fix="Restore the database from a backup. If the version is not in production, you can "
            "train another candidate instead.",
        )


def check_rollout(connection: Connection, model: str) -> Iterator[RegistryFinding]:
    """Yield the findings about a model's last rollout: head, transitions, version, receipt."""
    try:
        rollout = rollout_rows.load_last(connection, model)
    except IntegrityError as error:
        yield finding_from_error(model, None, "rollout", error)
        return
    if rollout is None:
        return
    row = connection.execute(
        sa.select(rollouts.c.version, rollouts.c.receipt, versions.c.candidate)
        .outerjoin(
            versions,
            sa.and_(versions.c.model == rollouts.c.model, versions.c.number == rollouts.c.version),
        )
        .where(rollouts.c.id == rollout.id, rollouts.c.model == model)
    ).first()
    problem = ""
    if row is None:
        problem = "the registry has no row for its start"
    elif (row.version, row.candidate) != (rollout.version, rollout.candidate):
        problem = "it sends requests to a version other than the version it was started for"
    elif not _is_passed_promotion(connection, row.receipt, rollout.candidate):
        problem = "its receipt does not allow a rollout of its version"
    if problem:
        yield RegistryFinding(
            model=model,
            version=rollout.version,
            problem="rollout",
            what=f"{model}: the rollout of version {rollout.version} is inconsistent: {problem}.",
            fix=_FIX,
        )


def _check_version(connection: Connection, model: str, number: int) -> Iterator[RegistryFinding]:
    query = sa.select(versions.c.number).where(
        versions.c.model == model, versions.c.number == number
    )
    if connection.execute(query).first() is None:
        yield RegistryFinding(
            model=model,
            version=number,
            problem="lineage",
            what=f"{model} has no version {number}.",
            fix=_FIX,
        )
        return
    try:
        version = queries.load_version(connection, model, number)
        require_valid_lineage(version)
        select_local_lineage = sa.select(local_lineages.c.number).where(
            local_lineages.c.model == model, local_lineages.c.number == number
        )
        # The row of a local training must not have been removed, because the imported lineage
        # would then be used again.
        if connection.execute(select_local_lineage).first() is None:
            log.require_never_logged(connection, local_lineages, [model, number])
    except SluiceError as error:
        yield finding_from_error(model, number, "lineage", error)
    for digest, payload in connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(version_receipts, version_receipts.c.receipt == receipts.c.digest)
        .where(version_receipts.c.model == model, version_receipts.c.number == number)
    ).all():
        try:
            parse_receipt(digest, payload)
        except SluiceError as error:
            yield finding_from_error(model, number, "receipt", error)


def _is_passed_promotion(connection: Connection, digest: str, candidate: str) -> bool:
    """Return whether a receipt is a passed promotion receipt of a candidate."""
    payload = connection.execute(
        sa.select(receipts.c.payload).where(receipts.c.digest == digest)
    ).scalar()
    try:
        receipt = None if payload is None else parse_receipt(digest, payload)
    except IntegrityError:
        return False
    return (
        receipt is not None
        and receipt.gate == "promotion"
        and receipt.passed
        and receipt.subject.get("candidate") == candidate
    )


def _select_rows(model: str, version_numbers: Sequence[int]) -> list[RowSelection]:
    """Return selections of the rows about a model and some of its versions."""
    is_of_versions = version_receipts.c.number.in_(version_numbers)
    select_linked_receipts = sa.select(version_receipts.c.receipt).where(
        version_receipts.c.model == model, is_of_versions
    )
    select_candidates = sa.select(versions.c.candidate).where(
        versions.c.model == model, versions.c.number.in_(version_numbers)
    )
    select_last_rollout = sa.select(rollout_heads.c.rollout).where(rollout_heads.c.model == model)
    is_move_or_of_versions = sa.or_(
        history.c.revision.is_not(None), history.c.to_version.in_(version_numbers)
    )
    return [
        (models, models.c.name == model),
        (versions, sa.and_(versions.c.model == model, versions.c.number.in_(version_numbers))),
        (
            local_lineages,
            sa.and_(local_lineages.c.model == model, local_lineages.c.number.in_(version_numbers)),
        ),
        (version_receipts, sa.and_(version_receipts.c.model == model, is_of_versions)),
        (receipts, receipts.c.digest.in_(select_linked_receipts)),
        (
            decisions,
            sa.and_(decisions.c.model == model, decisions.c.candidate.in_(select_candidates)),
        ),
        (history, sa.and_(history.c.model == model, is_move_or_of_versions)),
        (rollouts, rollouts.c.id.in_(select_last_rollout)),
        (rollout_transitions, rollout_transitions.c.rollout.in_(select_last_rollout)),
    ]


def _load_served_numbers(connection: Connection, model: str) -> list[int]:
    """Return the numbers of the production version and of the challenger of an active rollout.

    If the pointer is damaged, the list is empty. If the rollout is damaged, its challenger is
    omitted.
    """
    served_numbers: list[int] = []
    try:
        pointer = queries.load_pointer(connection, model)
        served_numbers += [] if pointer.version is None else [pointer.version]
        rollout = rollout_rows.load_last(connection, model)
        served_numbers += [] if rollout is None or rollout.is_over else [rollout.version]
    except IntegrityError:  # reported by check_moves or check_rollout
        pass
    return served_numbers
