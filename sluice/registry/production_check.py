"""Verifies the production state of one model before it is served, compared or changed.

This is a part of ``sluice registry verify``: pointer, history, log and receipts must agree about
the versions in use. Artifacts are not read, because their digests are verified when weights are
loaded.
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
    log_head,
    models,
    own_lineages,
    pointers,
    receipts,
    rollout_heads,
    rollout_transitions,
    rollouts,
    version_receipts,
    versions,
)

_FIX = "The database was edited manually: restore it from a backup."


def require_consistent(connection: Connection, model: str, numbers: Sequence[int]) -> None:
    """Reject a model whose pointer or given versions are inconsistent in the registry.

    Args:
        connection: Connection of the caller's transaction.
        model: Name of the model.
        numbers: Versions that are about to be used.

    Raises:
        RegistryInconsistent: The message contains the first finding, and the command that lists
            all findings.
    """
    findings = check(connection, model, numbers)
    if not findings:
        return
    first_finding, num_others = findings[0], len(findings) - 1
    error = RegistryInconsistent(
        f"{first_finding.what}{f' The check found {num_others} more.' if num_others else ''}",
        cause=f"The registry is inconsistent about {model}, so the version is not used.",
        fix=f"{first_finding.fix.rstrip('.')}. To list all findings: sluice registry verify",
    )
    error.num_findings = len(findings)
    raise error


def check(connection: Connection, model: str, numbers: Sequence[int]) -> list[RegistryFinding]:
    """Return the findings about a model's pointer and some of its versions; [] if consistent.

    Cost:
        About 40 queries; reads the history of the model, the rows of the versions and the keys of
        all rows.
    """
    findings = list(check_moves(connection, model, numbers))
    for number in dict.fromkeys(numbers):
        findings += _check_version(connection, model, number)
    findings += check_rollout(connection, model)
    findings += log_verification.check_rows(connection, _select_rows(model, numbers))
    findings += log_verification.check_removed_rows(connection)
    findings += append_only.check(connection)
    findings += table_checks.check(connection)
    return findings


def check_production(connection: Connection, model: str) -> list[RegistryFinding]:
    """Return the findings about the served versions: production and a rollout's challenger."""
    return check(connection, model, _served_versions(connection, model))


def require_consistent_production(connection: Connection, model: str, *others: int) -> None:
    """Reject a model if registry entries about its served versions contradict each other.

    Args:
        connection: Connection of the caller's transaction.
        model: Name of the model.
        others: Numbers of further versions to check.

    Raises:
        RegistryInconsistent: See ``require_consistent``.
    """
    require_consistent(connection, model, [*_served_versions(connection, model), *others])


def compute_fingerprint(connection: Connection, model: str) -> str:
    """Return a digest that changes with the served versions, their lineage or the end of the log.

    While the digest is unchanged, ``check`` can be skipped for some time. The digest does not cover
    all rows that ``check`` reads, so the check must still be repeated periodically.
    """
    select_production = sa.select(pointers.c.version).where(pointers.c.model == model)
    select_last_rollout = sa.select(rollout_heads.c.rollout).where(rollout_heads.c.model == model)
    select_challenger = sa.select(rollouts.c.version).where(rollouts.c.id.in_(select_last_rollout))
    is_served = versions.c.number.in_(sa.union(select_production, select_challenger))
    has_local_lineage = sa.and_(
        own_lineages.c.model == versions.c.model, own_lineages.c.number == versions.c.number
    )
    state_queries: list[sa.Select[Any]] = [
        sa.select(pointers).where(pointers.c.model == model),
        sa.select(
            versions.c.number, versions.c.candidate, versions.c.lineage, own_lineages.c.lineage
        )
        .outerjoin(own_lineages, has_local_lineage)
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
    # The tables are read first: this locks them in PostgreSQL, so that nobody can alter them before
    # their definitions are read.
    results = [list(connection.execute(query)) for query in state_queries]
    results.append(list(table_checks.load_relations(connection)))
    if connection.dialect.name == "sqlite":  # this number changes with the schema and the triggers
        results.append(list(connection.exec_driver_sql("PRAGMA schema_version")))
    return digest_json([[[str(value) for value in row] for row in rows] for rows in results])


def require_valid_lineage(version: Version) -> None:
    """Reject a version whose settings, inputs or weights are not what the gates evaluated."""
    problem = version.lineage.find_contradiction()
    if not problem and version.lineage.candidate != version.candidate:
        problem = (
            f"it is stored as candidate {version.candidate[:12]}, but its lineage has "
            f"{version.lineage.candidate[:12]}"
        )
    if problem:
        raise IntegrityError(
            f"{version.model} version {version.number} differs from what the gates evaluated: "
            f"{problem}.",
            cause="Data, config, settings, code or weights in the lineage were changed after the "
            "gates ran.",
            fix="Restore the database from a backup, or train another candidate if this one is not "
            "in production.",
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
        problem = "its start is not in the registry"
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
        select_local_lineage = sa.select(own_lineages.c.number).where(
            own_lineages.c.model == model, own_lineages.c.number == number
        )
        # If the row of a local training were removed, the imported lineage would count again.
        if connection.execute(select_local_lineage).first() is None:
            log.require_never_logged(connection, own_lineages, [model, number])
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


def _select_rows(model: str, numbers: Sequence[int]) -> list[RowSelection]:
    """Return selections of the rows about a model and some versions, which must match the log."""
    is_of_versions = version_receipts.c.number.in_(numbers)
    select_linked_receipts = sa.select(version_receipts.c.receipt).where(
        version_receipts.c.model == model, is_of_versions
    )
    select_candidates = sa.select(versions.c.candidate).where(
        versions.c.model == model, versions.c.number.in_(numbers)
    )
    select_last_rollout = sa.select(rollout_heads.c.rollout).where(rollout_heads.c.model == model)
    is_relevant = sa.or_(history.c.revision.is_not(None), history.c.to_version.in_(numbers))
    return [
        (models, models.c.name == model),
        (versions, sa.and_(versions.c.model == model, versions.c.number.in_(numbers))),
        (own_lineages, sa.and_(own_lineages.c.model == model, own_lineages.c.number.in_(numbers))),
        (version_receipts, sa.and_(version_receipts.c.model == model, is_of_versions)),
        (receipts, receipts.c.digest.in_(select_linked_receipts)),
        (
            decisions,
            sa.and_(decisions.c.model == model, decisions.c.candidate.in_(select_candidates)),
        ),
        (history, sa.and_(history.c.model == model, is_relevant)),
        (rollouts, rollouts.c.id.in_(select_last_rollout)),
        (rollout_transitions, rollout_transitions.c.rollout.in_(select_last_rollout)),
    ]


def _served_versions(connection: Connection, model: str) -> list[int]:
    """Return the version in production and the challenger of an active rollout.

    A damaged pointer or rollout is omitted.
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
