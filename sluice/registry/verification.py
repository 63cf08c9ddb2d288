"""Verifies the whole registry: artifacts, receipts, lineage, pointers, history and rollouts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError, SluiceError
from sluice.base.pluralize import pluralize
from sluice.models.weights_format import require_intact
from sluice.registry import append_only, evidence, queries, table_checks
from sluice.registry.findings import finding_from_error
from sluice.registry.history_checks import check_moves
from sluice.registry.missing_artifacts import explain_missing_artifacts, lacks_all_weights
from sluice.registry.production_check import check_rollout, require_valid_lineage
from sluice.registry.records import RegistryFinding, Version
from sluice.registry.tables import (
    decisions,
    imported_receipts,
    receipts,
    version_receipts,
    versions,
)


@dataclass(slots=True)
class _AbsentVersions:
    """Versions without any weights in this home, and their missing artifacts."""

    versions: list[Version] = field(default_factory=list)
    artifacts: set[str] = field(default_factory=set)

    def has_candidate(self, digest: str | None) -> bool:
        return any(version.candidate == digest for version in self.versions)


def check(
    connection: Connection, models: Sequence[str], store: ArtifactStore, *, url: str
) -> Iterator[RegistryFinding]:
    """Yield all findings about some models, and about the tables and triggers of the registry.

    The artifacts, receipts, lineage, pointer, history and last rollout of each model are verified.
    All versions without any weights in this home are reported as one finding.

    Args:
        connection: Connection to the registry.
        models: Names of the models.
        store: Artifacts of this home.
        url: URL of the registry, for the finding about missing artifacts.
    """
    absent_versions = _AbsentVersions()
    for model in models:
        numbers = connection.execute(
            sa.select(versions.c.number)
            .where(versions.c.model == model)
            .order_by(versions.c.number)
        ).scalars()
        for number in list(numbers):
            yield from _check_version(connection, model, number, store, absent_versions)
        yield from _check_receipts(connection, model)
        yield from _check_decision_tables(connection, model, store, absent_versions)
        yield from check_moves(connection, model)
        yield from check_rollout(connection, model)
    if absent_versions.versions:
        yield _missing_weights_finding(absent_versions, store, url)
    yield from append_only.check(connection)
    yield from table_checks.check(connection)


def _missing_weights_finding(
    absent_versions: _AbsentVersions, store: ArtifactStore, url: str
) -> RegistryFinding:
    num_artifacts = len(absent_versions.artifacts)
    numbers_by_model: dict[str, list[str]] = {}
    for version in absent_versions.versions:
        numbers_by_model.setdefault(version.model, []).append(str(version.number))
    (first_version, *other_versions) = absent_versions.versions
    cause, fix = explain_missing_artifacts(url, store)
    versions_text = "; ".join(
        f"{model} version{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
        for model, numbers in numbers_by_model.items()
    )
    return RegistryFinding(
        model=first_version.model if len(numbers_by_model) == 1 else "",
        version=None if other_versions else first_version.number,
        problem="artifact",
        what=f"{store.root} has no weights of {versions_text}: "
        f"{pluralize(num_artifacts, 'artifact')} of these versions and of their decisions "
        f"{'is' if num_artifacts == 1 else 'are'} missing. {cause}",
        fix=fix,
    )


def _check_version(
    connection: Connection,
    model: str,
    number: int,
    store: ArtifactStore,
    absent_versions: _AbsentVersions,
) -> Iterator[RegistryFinding]:
    try:
        version = queries.load_version(connection, model, number)
        require_valid_lineage(version)
    except SluiceError as error:
        yield finding_from_error(model, number, "lineage", error)
        return
    missing_fields = version.lineage.missing_fields()
    if missing_fields:
        yield RegistryFinding(
            model=model,
            version=number,
            problem="lineage",
            what=f"{model} version {number} lacks {', '.join(missing_fields)}.",
            fix="Train another candidate with a pipeline that records them. The lineage of a "
            "registered candidate does not change.",
        )
    weights = version.lineage.weights()
    is_absent = not missing_fields and lacks_all_weights(version.lineage, store)
    if is_absent:
        absent_versions.versions.append(version)
    for role, digest in (weights | version.lineage.other_artifacts()).items():
        try:
            if is_absent and not store.has(digest):
                absent_versions.artifacts.add(digest)
                continue
            require_intact(store, digest, what=role, is_weights=role in weights)
        except SluiceError as error:
            yield finding_from_error(model, number, "artifact", error)


def _check_decision_tables(
    connection: Connection, model: str, store: ArtifactStore, absent_versions: _AbsentVersions
) -> Iterator[RegistryFinding]:
    """Verify every table of row losses on which a decision is based."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(decisions.c.model == model)
        .order_by(decisions.c.id)
    ).all()
    for row in rows:
        try:
            receipt = evidence.parse_receipt(row.digest, row.payload)
        except IntegrityError:  # reported by _check_receipts
            continue
        is_absent = absent_versions.has_candidate(receipt.subject.get("candidate"))
        for role, digest in dict(receipt.evidence.get("tables") or {}).items():
            try:
                if is_absent and not store.has(digest):
                    absent_versions.artifacts.add(digest)
                    continue
                require_intact(store, digest, what=f"{role} of a decision", is_weights=False)
            except SluiceError as error:
                yield finding_from_error(model, None, "artifact", error)


def _check_receipts(connection: Connection, model: str) -> Iterator[RegistryFinding]:
    """Verify every receipt of the model's versions and decisions."""
    linked_rows = connection.execute(
        sa.select(version_receipts.c.number, receipts.c.digest, receipts.c.payload)
        .join(receipts, receipts.c.digest == version_receipts.c.receipt)
        .where(version_receipts.c.model == model)
        .order_by(version_receipts.c.id)
    ).all()
    imported_rows = connection.execute(
        sa.select(imported_receipts.c.number, receipts.c.digest, receipts.c.payload)
        .join(receipts, receipts.c.digest == imported_receipts.c.receipt)
        .where(imported_receipts.c.model == model)
        .order_by(imported_receipts.c.id)
    ).all()
    decision_rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(decisions.c.model == model)
        .order_by(decisions.c.id)
    ).all()
    number_by_digest = {row.digest: row.number for row in (*imported_rows, *linked_rows)}
    rows = (*linked_rows, *imported_rows, *decision_rows)
    for digest, payload in {row.digest: row.payload for row in rows}.items():
        try:
            evidence.parse_receipt(digest, payload)
        except SluiceError as error:
            yield finding_from_error(model, number_by_digest.get(digest), "receipt", error)
