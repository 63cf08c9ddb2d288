"""Moves the production pointer: promotion on evidence, rollback along the history.

Both check all conditions first, then change pointer and history in one transaction, which a crash
rolls back as a whole. The pointer has a revision: the move fails if the revision has changed since
the checks (compare-and-swap), so one of two concurrent promotions gets a ``PromotionConflict``.
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


def check_expected(connection: Connection, model: str, expected: int | None) -> ProductionPointer:
    """Return the pointer if it has the version that the caller expects.

    Raises:
        PromotionConflict: It has another version; the message says who moved it and when.
    """
    pointer = queries.load_pointer(connection, model)
    if pointer.version != expected:
        raise promotion_conflict(connection, model, expected)
    return pointer


def promotion_conflict(
    connection: Connection, model: str, expected: int | None
) -> PromotionConflict:
    """Return the error that says who moved the pointer away from ``expected``."""
    moves = [e for e in queries.load_history(connection, model) if e.revision is not None]
    now = queries.load_pointer(connection, model).version
    cause = ""
    if moves:
        last = moves[-1]
        verb = "promoted" if last.action == "promote" else "rolled back to"
        cause = (
            f"{last.actor} {verb} version {last.to_version} at {_when(last.at)} ({last.reason})."
        )
    return PromotionConflict(
        f"{model}: {_name(expected)} was expected in production, but {_name(now)} is.",
        cause=cause,
        fix="Evaluate the candidate against the current production version, then promote again.",
    )


def require_evidence(
    connection: Connection,
    version: Version,
    *,
    pointer: ProductionPointer,
    reinstate: bool,
    rules: str | None,
) -> str:
    """Return the digest of the promotion receipt that allows this version into production.

    Raises:
        GateBlocked: A receipt is missing, failed, about another subject or issued under other
            rules; the lineage is incomplete; or the version was rolled back after its approval.
        IntegrityError: A receipt or the lineage was changed after it was written.
    """
    lineage = version.lineage
    missing = lineage.missing_fields()
    if missing:
        raise GateBlocked(
            f"The lineage of {_of(version)} lacks: {', '.join(missing)}.",
            fix="Register the candidate again from a pipeline that records them.",
        )
    require_valid_lineage(version)
    queries.require_version_matches_log(connection, version)
    log_verification.require_valid_table(
        connection, recordings
    )  # they determine the latest verdict
    require_rules(connection, version, pointer=pointer, rules=rules)
    linked = evidence.load_linked_receipts(connection, version.model, version.number)
    subject = {"data": lineage.data, "config": lineage.config, "code": lineage.code}
    searched_from = _searched_from(linked, lineage) or subject
    poc = _newest(linked, gate="poc", about=searched_from)
    receipts.require(poc.receipt if poc else None, gate="poc", subject=searched_from)
    reference = reference_of(connection, version.model, pointer)
    judged = _newest(linked, gate="promotion", about={"reference": reference})
    receipt = receipts.require(
        judged.receipt if judged else None,
        gate="promotion",
        subject=subject | {"candidate": version.candidate, "reference": reference},
    )
    if judged is not None and not reinstate:
        _reject_rolled_back(connection, version, approved=judged.line)
    return receipt.digest


def require_rules(
    connection: Connection, version: Version, *, pointer: ProductionPointer, rules: str | None
) -> None:
    """Reject a version whose verdict was issued under other gate, guard or suite settings.

    The verdict that counts is the one on which the promotion would be based, passed or not. A
    version without a verdict is rejected by ``require_evidence``.

    Args:
        connection: Connection of the caller's transaction.
        version: Version to promote.
        pointer: Current production pointer.
        rules: Digest of the current settings; None to skip the check (manual promotion).
    """
    if rules is None:
        return
    linked = evidence.load_linked_receipts(connection, version.model, version.number)
    reference = reference_of(connection, version.model, pointer)
    judged = _newest(linked, gate="promotion", about={"reference": reference})
    if judged is not None and judged.receipt.subject.get("rules") != rules:
        raise GateBlocked(
            f"{_of(version)} was evaluated under gate, guard or suite settings that differ from "
            "the current settings of the pipeline.",
            cause="The file was changed after the decision, which is final for its window.",
            fix="Run the pipeline on a newer window, or restore the settings.",
        )


def reference_of(connection: Connection, model: str, pointer: ProductionPointer) -> str:
    """Return the reference that a promotion receipt must have: the production candidate."""
    if pointer.version is None:
        return BASELINE
    return queries.load_version(connection, model, pointer.version).candidate


def _searched_from(linked: Sequence[LinkedReceipt], lineage: Lineage) -> dict[str, str] | None:
    """Return the subject required of the POC receipt if there was a search; None otherwise.

    A search starts from the settings that passed the POC gate and ends with those of the version.
    """
    found = {"data": lineage.data, "found": lineage.config}
    search = _newest(linked, gate="search", about=found)
    if search is None and not lineage.num_trials:
        return None
    receipt = receipts.require(search.receipt if search else None, gate="search", subject=found)
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
        RegistryInconsistent: The registry is inconsistent about the pointer or the version.
    """
    queries.lock_model(connection, version.model, at=at)
    require_consistent(connection, version.model, [version.number])
    revision = pointer.revision
    last = queries.last_move(connection, version.model)
    if last is not None:  # a clock that was set back must not reorder the history
        at = max(at, last.at)
    if not queries.move_pointer(connection, version.model, to=version.number, revision=revision):
        raise promotion_conflict(connection, version.model, pointer.version)
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


def rollback_target(connection: Connection, model: str, pointer: ProductionPointer) -> int:
    """Return the last good production version before the current one.

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
            f"{model}: the pointer has version {pointer.version}, the history {trail[-1]}.",
            cause="The registry's database was edited manually.",
            fix="Run sluice registry verify, and restore the database from a backup.",
        )
    if len(trail) == 1:
        raise UnknownVersion(
            f"{model} version {pointer.version} is in production, and no earlier version is "
            "left to roll back to.",
            cause="Rollbacks follow the promotions backwards and skip versions that were rolled "
            "back.",
            fix=f"Show the history: sluice registry history {model}",
        )
    return trail[-2]


def require_actor_and_reason(**texts: str) -> None:
    """Reject an empty or undecodable actor or reason: the audit requires both."""
    for name, text in texts.items():
        validation.require_storable_text(text, what=name)
        if not text.strip():
            raise ContractError(
                f"A move of the production pointer requires {name}, got an empty text.",
                fix=f"Pass --{name} '...'",
            )


def _newest(
    linked: Sequence[LinkedReceipt], *, gate: str, about: Mapping[str, str]
) -> LinkedReceipt | None:
    """Return the latest receipt of a gate, preferring one whose subject includes ``about``."""
    of_gate = [r for r in linked if r.receipt.gate == gate]
    fitting = [r for r in of_gate if about.items() <= r.receipt.subject.items()]
    candidates = fitting or of_gate
    return candidates[-1] if candidates else None


def _reject_rolled_back(connection: Connection, version: Version, *, approved: int) -> None:
    """Reject a version that was rolled back after line ``approved`` of the log."""
    entries = queries.load_history(connection, version.model)
    left = [e for e in entries if e.action == "rollback" and e.from_version == version.number]
    if left and queries.find_history_line(connection, left[-1]) > approved:
        raise GateBlocked(
            f"{_of(version)} was rolled back by {left[-1].actor} at {_when(left[-1].at)} "
            f"({left[-1].reason}), after its promotion receipt was recorded.",
            fix="Evaluate it on a newer window, or reinstate it deliberately: "
            f"sluice registry promote {version.model} {version.number} --reinstate",
        )


def _of(version: Version) -> str:
    return f"{version.model} version {version.number}"


def _name(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
