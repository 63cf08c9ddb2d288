"""Checking the whole registry: what is stored against what it says about itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError, SluiceError
from sluice.base.pluralize import counted
from sluice.models.weights_format import require_intact
from sluice.registry import append_only, evidence, queries, relations
from sluice.registry.absence import explain_absence, is_absent
from sluice.registry.findings import found
from sluice.registry.moves import check_moves
from sluice.registry.production_check import check_rollout, require_own_parts
from sluice.registry.records import Finding, Version
from sluice.registry.tables import (
    decisions,
    imported_receipts,
    receipts,
    version_receipts,
    versions,
)


@dataclass(slots=True)
class _Absent:
    """What this home does not have, for one finding instead of one an artifact."""

    versions: list[Version] = field(default_factory=list)
    artifacts: set[str] = field(default_factory=set)

    def has_candidate(self, digest: str | None) -> bool:
        return any(version.candidate == digest for version in self.versions)


def check(
    connection: Connection, models: Sequence[str], store: ArtifactStore, *, url: str
) -> Iterator[Finding]:
    """Yield what does not hold for some models: artifacts, receipts, lineage, pointer, history.

    Also of the rollout of each, and of the tables and triggers of the registry.

    Versions of which this home has no weights are one finding together.

    Args:
        connection: To the registry.
        models: Their names.
        store: The artifacts of this home.
        url: Of the registry, for the message.
    """
    absent = _Absent()
    for model in models:
        numbers = connection.execute(
            sa.select(versions.c.number)
            .where(versions.c.model == model)
            .order_by(versions.c.number)
        ).scalars()
        for number in list(numbers):
            yield from _check_version(connection, model, number, store, absent)
        yield from _check_receipts(connection, model)
        yield from _check_tables(connection, model, store, absent)
        yield from check_moves(connection, model)
        yield from check_rollout(connection, model)
    if absent.versions:
        yield _absence(absent, store, url)
    yield from append_only.check(connection)
    yield from relations.check(connection)


def _absence(absent: _Absent, store: ArtifactStore, url: str) -> Finding:
    numbers: dict[str, list[str]] = {}
    for version in absent.versions:
        numbers.setdefault(version.model, []).append(str(version.number))
    (first, *others) = absent.versions
    cause, fix = explain_absence(url, store)
    who = "; ".join(
        f"{model} version{'s' * (len(own) > 1)} {', '.join(own)}" for model, own in numbers.items()
    )
    return Finding(
        model=first.model if len(numbers) == 1 else "",
        version=None if others else first.number,
        problem="artifact",
        what=f"{store.root} has no weights of {who}: "
        f"{counted(len(absent.artifacts), 'artifact')} of them and of their decisions "
        f"{'is' if len(absent.artifacts) == 1 else 'are'} missing. {cause}",
        fix=fix,
    )


def _check_version(
    connection: Connection, model: str, number: int, store: ArtifactStore, absent: _Absent
) -> Iterator[Finding]:
    try:
        version = queries.load_version(connection, model, number)
        require_own_parts(version)
    except SluiceError as error:
        yield found(model, number, "lineage", error)
        return
    missing = version.lineage.missing_fields()
    if missing:
        yield Finding(
            model=model,
            version=number,
            problem="lineage",
            what=f"{model} version {number} lacks {', '.join(missing)}.",
            fix="Register the candidate again from a pipeline that records them.",
        )
    weights = version.lineage.weights()
    is_away = not missing and is_absent(version.lineage, store)
    if is_away:
        absent.versions.append(version)
    for role, digest in (weights | version.lineage.other_artifacts()).items():
        try:
            if is_away and not store.has(digest):
                absent.artifacts.add(digest)
                continue
            require_intact(store, digest, what=role, is_weights=role in weights)
        except SluiceError as error:
            yield found(model, number, "artifact", error)


def _check_tables(
    connection: Connection, model: str, store: ArtifactStore, absent: _Absent
) -> Iterator[Finding]:
    """Read every table that a decision names as what it was made from."""
    rows = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(decisions.c.model == model)
        .order_by(decisions.c.id)
    ).all()
    for row in rows:
        try:
            receipt = evidence.parse_receipt(row.digest, row.payload)
        except IntegrityError:  # _check_receipts says so
            continue
        is_away = absent.has_candidate(receipt.subject.get("candidate"))
        for role, digest in dict(receipt.evidence.get("tables") or {}).items():
            try:
                if is_away and not store.has(digest):
                    absent.artifacts.add(digest)
                    continue
                require_intact(store, digest, what=f"{role} of a decision", is_weights=False)
            except SluiceError as error:
                yield found(model, None, "artifact", error)


def _check_receipts(connection: Connection, model: str) -> Iterator[Finding]:
    """Read every receipt that a version or a decision of the model rests on."""
    linked = connection.execute(
        sa.select(version_receipts.c.number, receipts.c.digest, receipts.c.payload)
        .join(receipts, receipts.c.digest == version_receipts.c.receipt)
        .where(version_receipts.c.model == model)
        .order_by(version_receipts.c.id)
    ).all()
    imported = connection.execute(
        sa.select(imported_receipts.c.number, receipts.c.digest, receipts.c.payload)
        .join(receipts, receipts.c.digest == imported_receipts.c.receipt)
        .where(imported_receipts.c.model == model)
        .order_by(imported_receipts.c.id)
    ).all()
    decided = connection.execute(
        sa.select(receipts.c.digest, receipts.c.payload)
        .join(decisions, decisions.c.receipt == receipts.c.digest)
        .where(decisions.c.model == model)
        .order_by(decisions.c.id)
    ).all()
    owners = {row.digest: row.number for row in (*imported, *linked)}
    rows = (*linked, *imported, *decided)
    for digest, payload in {row.digest: row.payload for row in rows}.items():
        try:
            evidence.parse_receipt(digest, payload)
        except SluiceError as error:
            yield found(model, owners.get(digest), "receipt", error)
