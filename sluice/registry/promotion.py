"""Moving the production pointer: promotion on evidence, rollback along the history (REG-2).

Both check everything first, then change pointer and history in one transaction that a crash
undoes as a whole. The pointer carries a revision; the move is refused when it is no longer the
one the checks were made against, so of two racing promoters one is told that it lost.
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
from sluice.registry import admission, evidence, log_verification, queries
from sluice.registry.lineage import BASELINE, Lineage
from sluice.registry.production_check import require_own_parts, require_sound
from sluice.registry.records import Action, LinkedReceipt, Pointer, Promotion, Version
from sluice.registry.tables import recordings
from sluice.registry.trail import production_trail


def check_expected(connection: Connection, model: str, expected: int | None) -> Pointer:
    """Return the pointer when it points where the caller believes it does.

    Raises:
        PromotionConflict: It points elsewhere; the message says who moved it and when.
    """
    pointer = queries.load_pointer(connection, model)
    if pointer.version != expected:
        raise conflict(connection, model, expected)
    return pointer


def conflict(connection: Connection, model: str, expected: int | None) -> PromotionConflict:
    """Say who moved the pointer away from ``expected``."""
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
        f"{model}: {_name(expected)} was expected in production, and {_name(now)} is.",
        cause=cause,
        fix="Evaluate the candidate against what is in production now, then promote again.",
    )


def require_evidence(
    connection: Connection,
    version: Version,
    *,
    pointer: Pointer,
    reinstate: bool,
    rules: str | None,
) -> str:
    """Return the digest of the promotion receipt that allows this version into production.

    Raises:
        GateBlocked: A receipt is missing, failed, about something else or given under other rules;
            the lineage is incomplete; or the version was rolled back after it was approved.
        IntegrityError: A receipt or the lineage was changed after it was written.
    """
    lineage = version.lineage
    missing = lineage.missing_fields()
    if missing:
        raise GateBlocked(
            f"{_of(version)} lacks in its lineage: {', '.join(missing)}.",
            fix="Register the candidate again from a pipeline that records them.",
        )
    require_own_parts(version)
    queries.require_as_logged(connection, version)
    log_verification.require_table(connection, recordings)  # they say which verdict is newest
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
        _refuse_rolled_back(connection, version, approved=judged.line)
    return receipt.digest


def require_rules(
    connection: Connection, version: Version, *, pointer: Pointer, rules: str | None
) -> None:
    """Refuse a version that was judged under other settings of gate, guards or suites than now.

    The verdict that counts is the one that moving to the version would rest on, passed or not. A
    version that nobody judged is left to the evidence.

    Args:
        connection: Of the caller's transaction.
        version: To be moved to.
        pointer: Where production points.
        rules: Digest of the present settings; None from whoever has none, a person.
    """
    if rules is None:
        return
    linked = evidence.load_linked_receipts(connection, version.model, version.number)
    reference = reference_of(connection, version.model, pointer)
    judged = _newest(linked, gate="promotion", about={"reference": reference})
    if judged is not None and judged.receipt.subject.get("rules") != rules:
        raise GateBlocked(
            f"{_of(version)} was judged under other settings of gate, guards or suites than the "
            "pipeline has now.",
            cause="The file was changed after the decision, which stands for its window.",
            fix="Run the pipeline on a newer window, or put the settings back.",
        )


def reference_of(connection: Connection, model: str, pointer: Pointer) -> str:
    """Return what a promotion receipt must have compared with, now."""
    if pointer.version is None:
        return BASELINE
    return queries.load_version(connection, model, pointer.version).candidate


def _searched_from(linked: Sequence[LinkedReceipt], lineage: Lineage) -> dict[str, str] | None:
    """Return what the POC gate had to be about, by the receipt of the search; None without one.

    A search goes from the settings that the POC gate saw to those of the version.
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
    action: Action,
    pointer: Pointer,
    at: datetime,
    actor: str,
    reason: str,
    receipt: str | None,
) -> Promotion:
    """Move the pointer and write the history; the caller's transaction makes it one step.

    Raises:
        PromotionConflict: The pointer moved since ``pointer`` was read.
        RegistryUnsound: The registry contradicts itself about the pointer or the version.
    """
    queries.lock_model(connection, version.model, at=at)
    require_sound(connection, version.model, [version.number])
    revision = pointer.revision
    last = queries.last_move(connection, version.model)
    if last is not None:  # a clock that was set back must not make the past ambiguous
        at = max(at, last.at)
    if not queries.move_pointer(connection, version.model, to=version.number, revision=revision):
        raise conflict(connection, version.model, pointer.version)
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


def rollback_target(connection: Connection, model: str, pointer: Pointer) -> int:
    """Return the last good production version before the present one.

    Raises:
        UnknownVersion: There is none.
        IntegrityError: The pointer does not agree with the history.
    """
    trail = production_trail(queries.load_history(connection, model))
    if pointer.version is None or not trail:
        raise UnknownVersion(
            f"{model} has nothing in production to roll back.",
            fix="See what there is: sluice registry list",
        )
    if trail[-1] != pointer.version:
        raise IntegrityError(
            f"{model}: the pointer says version {pointer.version}, the history {trail[-1]}.",
            cause="The ledger's database was edited by hand.",
            fix="Run sluice registry verify, and restore the database from a backup.",
        )
    if len(trail) == 1:
        raise UnknownVersion(
            f"{model} version {pointer.version} is in production, and no version before it is "
            "left to roll back to.",
            cause="Rollbacks walk back along the promotions and pass over what was rolled back.",
            fix=f"See the way here: sluice registry history {model}",
        )
    return trail[-2]


def require_words(**texts: str) -> None:
    """Refuse an empty or unreadable actor or reason: the audit must say who and why."""
    for name, text in texts.items():
        admission.require_text(text, what=name)
        if not text.strip():
            raise ContractError(
                f"A move of the production pointer needs {name}, got an empty text.",
                fix=f"Say it: --{name} '...'",
            )


def _newest(
    linked: Sequence[LinkedReceipt], *, gate: str, about: Mapping[str, str]
) -> LinkedReceipt | None:
    """Return the last receipt of a gate, preferably one whose subject has all of ``about``."""
    of_gate = [r for r in linked if r.receipt.gate == gate]
    fitting = [r for r in of_gate if about.items() <= r.receipt.subject.items()]
    candidates = fitting or of_gate
    return candidates[-1] if candidates else None


def _refuse_rolled_back(connection: Connection, version: Version, *, approved: int) -> None:
    """Refuse a version that was left by a rollback after line ``approved`` of the log."""
    entries = queries.load_history(connection, version.model)
    left = [e for e in entries if e.action == "rollback" and e.from_version == version.number]
    if left and queries.history_line(connection, left[-1]) > approved:
        raise GateBlocked(
            f"{_of(version)} was rolled back by {left[-1].actor} at {_when(left[-1].at)} "
            f"({left[-1].reason}), after its promotion receipt was recorded.",
            fix="Evaluate it on a newer window, or bring it back on purpose: "
            f"sluice registry promote {version.model} {version.number} --reinstate",
        )


def _of(version: Version) -> str:
    return f"{version.model} version {version.number}"


def _name(number: int | None) -> str:
    return "no version" if number is None else f"version {number}"


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
