"""Moves the production pointer: promotion on evidence, rollback along the history.

Each move first checks all its conditions, and then changes pointer and history in one transaction,
so a crash leaves no partial move. A move fails if the revision of the pointer has changed since the
checks (compare-and-swap). So of two concurrent promotions, one gets a ``PromotionConflict``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from sluice.base import receipts
from sluice.base.errors import (
    ContractError,
    GateBlocked,
    IntegrityError,
    PromotionConflict,
    UnknownVersion,
)
from sluice.registry import evidence, log_verification, queries, validation
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.production_check import require_consistent, require_valid_lineage
from sluice.registry.records import (
    HistoryAction,
    LinkedReceipt,
    ProductionPointer,
    Promotion,
    Version,
)
from sluice.registry.rollback_targets import production_trail
from sluice.registry.tables import recordings


def require_expected_version(
    connection: Connection, model: str, expected: int | None, *, action: HistoryAction
) -> ProductionPointer:
    """Return the pointer if the expected version is in production.

    Args:
        connection: Connection of the caller's transaction.
        model: Name of the model.
        expected: Number of the expected version; None to expect that nothing is in production.
        action: "promote" or "rollback", for the message.

    Raises:
        PromotionConflict: Another version is in production; the message says who moved the
            pointer and when.
    """
    pointer = queries.load_pointer(connection, model)
    if pointer.version != expected:
        raise _promotion_conflict_error(connection, model, expected, action=action)
    return pointer


def _promotion_conflict_error(
    connection: Connection, model: str, expected: int | None, *, action: HistoryAction
) -> PromotionConflict:
    """Return the error for an unexpected production version, with the last move as the cause."""
    entries = queries.load_history(connection, model)
    moves = [entry for entry in entries if entry.revision is not None]
    actual_version = queries.load_pointer(connection, model).version
    cause = ""
    if moves:
        last_move = moves[-1]
        verb = "promoted" if last_move.action == "promote" else "rolled back to"
        cause = (
            f"{last_move.actor} {verb} version {last_move.to_version} at "
            f"{_format_time(last_move.at)} ({last_move.reason})."
        )
    fix = "Evaluate the candidate against the current production version, then promote again."
    if action == "rollback":
        fix = (
            f"Show the history: sluice registry history {model}. Roll back again only if the "
            "current production version must be replaced."
        )
    return PromotionConflict(
        f"{model}: {_version_text(expected)} was expected in production, but "
        f"{_version_text(actual_version)} is in production.",
        cause=cause,
        fix=fix,
    )


def require_evidence(
    connection: Connection,
    version: Version,
    *,
    pointer: ProductionPointer,
    reinstate: bool,
    gate_settings_digest: str | None,
) -> str:
    """Return the digest of the promotion receipt that allows this version into production.

    Raises:
        GateBlocked: A receipt is missing, has failed, is about another subject or was issued under
            other settings; the lineage is incomplete; or the version was rolled back after its
            promotion receipt was recorded, and ``reinstate`` is False.
        IntegrityError: A receipt or the lineage was changed after it was written.
    """
    lineage = version.lineage
    missing_fields = lineage.missing_fields()
    if missing_fields:
        raise GateBlocked(
            f"The lineage of {_version_name(version)} lacks: {', '.join(missing_fields)}.",
            fix="Train another candidate with a pipeline that records them. The lineage of a "
            "registered candidate does not change.",
        )
    require_valid_lineage(version)
    queries.require_version_matches_log(connection, version)
    # The recordings must match the log, because they determine which receipt of the POC gate or of
    # a search is the latest.
    log_verification.require_valid_table(connection, recordings)
    require_current_gate_settings(
        connection, version, pointer=pointer, gate_settings_digest=gate_settings_digest
    )
    linked_receipts = evidence.load_linked_receipts(connection, version.model, version.number)
    subject = {"data": lineage.data, "config": lineage.config, "code": lineage.code}
    poc_subject = _subject_before_search(linked_receipts, lineage) or subject
    linked_poc_receipt = _newest_receipt(linked_receipts, gate="poc", subject=poc_subject)
    receipts.require(
        linked_poc_receipt.receipt if linked_poc_receipt else None,
        gate="poc",
        subject=poc_subject,
    )
    reference = reference_of(connection, version.model, pointer)
    linked_verdict_receipt = _newest_receipt(
        linked_receipts, gate="promotion", subject={"reference": reference}
    )
    receipt = receipts.require(
        linked_verdict_receipt.receipt if linked_verdict_receipt else None,
        gate="promotion",
        subject=subject | {"candidate": version.candidate, "reference": reference},
    )
    if linked_verdict_receipt is not None and not reinstate:
        _reject_rolled_back(connection, version, receipt_line=linked_verdict_receipt.line_number)
    return receipt.digest


def require_current_gate_settings(
    connection: Connection,
    version: Version,
    *,
    pointer: ProductionPointer,
    gate_settings_digest: str | None,
) -> None:
    """Reject a version whose verdict was issued under other gate, guard or suite settings.

    The settings are compared for the verdict on which the promotion would be based, whether this
    verdict is a pass or not. ``require_evidence`` rejects a version without a verdict.

    Args:
        connection: Connection of the caller's transaction.
        version: Version to promote.
        pointer: Current production pointer.
        gate_settings_digest: Digest of the current settings of gate, guards and suites; None to
            skip the check (manual promotion).
    """
    if gate_settings_digest is None:
        return
    linked_receipts = evidence.load_linked_receipts(connection, version.model, version.number)
    reference = reference_of(connection, version.model, pointer)
    linked_verdict_receipt = _newest_receipt(
        linked_receipts, gate="promotion", subject={"reference": reference}
    )
    # In the subject, the role "rules" has the digest of the settings of the verdict.
    if (
        linked_verdict_receipt is not None
        and linked_verdict_receipt.receipt.subject.get("rules") != gate_settings_digest
    ):
        raise GateBlocked(
            f"{_version_name(version)} was evaluated under gate, guard or suite settings that "
            "differ from the current settings of the pipeline.",
            cause="The settings were changed after the decision, which is final for its window.",
            fix="Run the pipeline on a newer window, or restore the settings.",
        )


def reference_of(connection: Connection, model: str, pointer: ProductionPointer) -> str:
    """Return the reference of a promotion receipt: the production candidate, or the baseline."""
    if pointer.version is None:
        return BASELINE
    return queries.load_version(connection, model, pointer.version).candidate


def _subject_before_search(
    linked_receipts: Sequence[LinkedReceipt], lineage: Lineage
) -> dict[str, str] | None:
    """Return the subject that the POC gate checked before a search; None without a search.

    This subject contains the digest of the settings from which the search started. The search then
    selected the version's settings.
    """
    # In the subject, the role "found" has the digest of the settings that the search selected.
    search_subject = {"data": lineage.data, "found": lineage.config}
    linked_search_receipt = _newest_receipt(linked_receipts, gate="search", subject=search_subject)
    if linked_search_receipt is None and not lineage.num_trials:
        return None
    receipt = receipts.require(
        linked_search_receipt.receipt if linked_search_receipt else None,
        gate="search",
        subject=search_subject,
    )
    return {role: receipt.subject[role] for role in ("data", "config", "code")}


def commit_move(
    connection: Connection,
    version: Version,
    *,
    action: HistoryAction,
    pointer: ProductionPointer,
    at: datetime,
    actor: str,
    reason: str,
    receipt: str | None,
) -> Promotion:
    """Move the pointer and write the history entry, atomically in the caller's transaction.

    Raises:
        PromotionConflict: The pointer moved since ``pointer`` was read.
        RegistryInconsistent: Registry entries about the pointer or the version contradict each
            other.
    """
    queries.lock_model(connection, version.model, at=at)
    require_consistent(connection, version.model, [version.number])
    revision = pointer.revision
    last_move = queries.last_move(connection, version.model)
    if last_move is not None:  # the history stays in order even if the clock was set back
        at = max(at, last_move.at)
    was_moved = queries.move_pointer(
        connection, version.model, to_version=version.number, expected_revision=revision
    )
    if not was_moved:
        raise _promotion_conflict_error(connection, version.model, pointer.version, action=action)
    queries.append_history(
        connection,
        at=at,
        model=version.model,
        action=action,
        from_version=pointer.version,
        to_version=version.number,
        actor=actor,
        reason=reason,
        receipt=receipt,
        revision=revision + 1,
    )
    return Promotion(
        model=version.model,
        version=version.number,
        previous=pointer.version,
        moved=True,
        revision=revision + 1,
        at=at,
    )


def find_rollback_target(connection: Connection, model: str, pointer: ProductionPointer) -> int:
    """Return the number of the version that a rollback restores; see ``production_trail``.

    Raises:
        UnknownVersion: No such version exists.
        IntegrityError: The pointer contradicts the history.
    """
    trail = production_trail(queries.load_history(connection, model))
    if pointer.version is None or not trail:
        raise UnknownVersion(
            f"{model} has nothing in production to roll back.",
            fix="List the versions: sluice registry list",
        )
    if trail[-1] != pointer.version:
        raise IntegrityError(
            f"{model}: the pointer is at version {pointer.version}, but the history ends with "
            f"version {trail[-1]}.",
            cause="The registry's database was edited manually.",
            fix="Run sluice registry verify, and restore the database from a backup.",
        )
    if len(trail) == 1:
        raise UnknownVersion(
            f"{model} version {pointer.version} is in production, and there is no earlier version "
            "to roll back to.",
            cause="A rollback returns to an earlier promotion, and skips versions that were "
            "rolled back before.",
            fix=f"Show the history: sluice registry history {model}",
        )
    return trail[-2]


def require_actor_and_reason(**texts: str) -> None:
    """Reject an actor or reason that is empty or that some databases cannot store."""
    for name, text in texts.items():
        validation.require_storable_text(text, what=name)
        if not text.strip():
            raise ContractError(
                f"The {name} of a change of the registry must not be empty.",
                fix=f"Pass --{name} '...'",
            )


def _newest_receipt(
    linked_receipts: Sequence[LinkedReceipt], *, gate: str, subject: Mapping[str, str]
) -> LinkedReceipt | None:
    """Return the latest receipt of a gate whose subject has the given digests by role.

    If there is no such receipt, the result is the latest receipt of the gate, with which the
    caller's error message describes the difference.
    """
    gate_receipts = [each for each in linked_receipts if each.receipt.gate == gate]
    matching_receipts = [
        each for each in gate_receipts if subject.items() <= each.receipt.subject.items()
    ]
    chosen_receipts = matching_receipts or gate_receipts
    return chosen_receipts[-1] if chosen_receipts else None


def _reject_rolled_back(connection: Connection, version: Version, *, receipt_line: int) -> None:
    """Reject a version that was rolled back after its promotion receipt was recorded.

    Args:
        connection: Connection of the caller's transaction.
        version: Version to promote.
        receipt_line: Number of the log line of the promotion receipt.
    """
    entries = queries.load_history(connection, version.model)
    rollbacks = [
        entry
        for entry in entries
        if entry.action == "rollback" and entry.from_version == version.number
    ]
    if rollbacks and queries.find_history_line(connection, rollbacks[-1]) > receipt_line:
        last_rollback = rollbacks[-1]
        raise GateBlocked(
            f"{_version_name(version)} was rolled back by {last_rollback.actor} at "
            f"{_format_time(last_rollback.at)} ({last_rollback.reason}), after its promotion "
            "receipt was recorded.",
            fix="Evaluate it on a newer window, or reinstate it deliberately: "
            f"sluice registry promote {version.model} {version.number} --reason '...' --reinstate",
        )


def _version_name(version: Version) -> str:
    return f"{version.model} version {version.number}"


def _version_text(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
