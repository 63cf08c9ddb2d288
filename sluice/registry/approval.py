"""Approvals: receipts by which a second person agrees to a promotion, signed with their own key.

An approval is valid for one candidate, reference and promotion receipt, and for one move of the
production pointer in one registry. An approval from before a rollback, or from another registry,
is therefore not valid. Because it is signed with the approver's private key, the promoter cannot
create it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.base.digests import digest_json
from sluice.base.errors import GateBlocked
from sluice.base.receipts import Receipt
from sluice.registry import evidence, log, log_signatures, queries, rollout_rows
from sluice.registry.keyring import KNOWN_KEYS, Keyring
from sluice.registry.promotion import reference_of
from sluice.registry.records import (
    HistoryEntry,
    LinkedReceipt,
    ProductionPointer,
    RegistryFinding,
    Version,
)
from sluice.registry.tables import (
    history,
    rollout_transitions,
    signatures,
    version_receipts,
)

GATE = "approval"


def create_approval(
    connection: Connection,
    keys: Keyring,
    version: Version,
    *,
    pointer: ProductionPointer,
    promotion: str,
    actor: str,
    reason: str,
    at: datetime,
) -> Receipt:
    """Return the signed receipt of an approval.

    Args:
        connection: Connection of the caller's transaction.
        keys: Keyring of the approver.
        version: Version to promote.
        pointer: Current production pointer.
        promotion: Digest of the promotion receipt to approve.
        actor: Name of the approver.
        reason: Reason for the record.
        at: Time of the approval.

    Raises:
        GateBlocked: The keyring does not list the keys of actors, or the signing key belongs to
            another actor.
    """
    if not keys.actors:
        raise GateBlocked(
            "An approval must be signed with a personal key, but the folder of "
            f"{keys.signing.path} has no {KNOWN_KEYS}.",
            fix=f"List the public key of every actor in {KNOWN_KEYS}.",
        )
    subject = _subject(connection, version, pointer=pointer, promotion=promotion)
    text = _signed_text(subject, actor=keys.require_own_actor(actor), reason=reason)
    return Receipt(
        gate=GATE,
        outcome="pass",
        passed=True,
        subject=subject,
        evidence={
            "actor": actor,
            "key_id": keys.signing.key_id,
            "signature": keys.signing.sign(GATE, text),
        },
        reason=reason,
        decided_at=at,
    )


def require_approval(
    connection: Connection,
    keys: Keyring | None,
    version: Version,
    *,
    pointer: ProductionPointer,
    promotion: str,
    at: datetime,
) -> None:
    """Reject a promotion that requires the approval of a second person and has none.

    Args:
        connection: Connection of the caller's transaction.
        keys: Keyring of the promoter; None if changes are not signed.
        version: Version to promote.
        pointer: Current production pointer.
        promotion: Digest of the promotion receipt.
        at: Time of the promotion.

    Raises:
        GateBlocked: No other actor has approved.
    """
    if keys is None or keys.two_person_since is None or at < keys.two_person_since:
        return
    subject = _subject(connection, version, pointer=pointer, promotion=promotion)
    linked = evidence.load_linked_receipts(connection, version.model, version.number)
    if not _approvers(keys, linked, subject) - {keys.signing.key_id}:
        raise GateBlocked(
            f"The promotion of {version.model} version {version.number} requires the approval of "
            "an actor other than its promoter, and no such approval against the current "
            "production version is recorded.",
            fix="Ask another person to run: sluice registry approve "
            f"{version.model} {version.number} --reason '...' --key THEIR_KEY",
        )


def check(
    connection: Connection, keys: Keyring, models: Sequence[str]
) -> Iterator[RegistryFinding]:
    """Yield changes signed with another actor's key, and promotions without required approval.

    Assumes:
        ``log_verification`` had no findings: every row has its line in the log.
    """
    if not keys.actors:
        return
    history_lines = log.line_numbers(connection, history)
    transition_lines = log.line_numbers(connection, rollout_transitions)
    for model in models:
        for entry in queries.load_history(connection, model):
            line = history_lines[log.encode_key([entry.id])]
            signer, is_bridged = _signer(connection, keys, line)
            if not is_bridged and not keys.may_sign(signer, entry.actor):
                yield _finding(entry, f"names {entry.actor!r} but is signed with another key")
            elif _needs_approval(connection, keys, entry, line) and not _is_approved(
                connection, keys, entry, signer
            ):
                yield _finding(entry, "was made without the approval of another actor")
        for rollout in rollout_rows.model_rollouts(connection, model):
            for transition in rollout_rows.load_transitions(connection, rollout):
                key = log.encode_key([rollout, transition.rollout.revision])
                signer, is_bridged = _signer(connection, keys, transition_lines[key])
                if not is_bridged and not keys.may_sign(signer, transition.actor):
                    yield RegistryFinding(
                        model=model,
                        version=transition.rollout.version,
                        problem="signature",
                        what=f"{model}: transition {transition.outcome} of rollout {rollout[:12]} "
                        f"names {transition.actor!r} but is signed with another key.",
                        fix="Find out whose key it is; see sluice registry audit.",
                    )


def _needs_approval(connection: Connection, keys: Keyring, entry: HistoryEntry, line: int) -> bool:
    """Return whether a move requires an approval.

    The writer of an entry could set an earlier time, so the times of signatures count as well.
    """
    since = keys.two_person_since
    return (
        entry.action == "promote"
        and since is not None
        and (entry.at >= since or log_signatures.has_passed(connection, keys, since, line=line))
    )


def _is_approved(connection: Connection, keys: Keyring, entry: HistoryEntry, promoter: str) -> bool:
    linked = evidence.load_linked_receipts(connection, entry.model, entry.to_version)
    subject = _subject(
        connection,
        queries.load_version(connection, entry.model, entry.to_version),
        pointer=ProductionPointer(version=entry.from_version, revision=(entry.revision or 0) - 1),
        promotion=str(entry.receipt),
    )
    approvers = _approvers(keys, linked, subject)
    for each in linked:  # an approval stays valid if its key was retired later
        key_id = str(each.receipt.evidence.get("key_id"))
        retired_at = keys.retired.get(key_id)
        if (
            retired_at is not None
            and _is_valid_approval(keys, each.receipt, subject, key_id)
            and not log_signatures.has_passed(connection, keys, retired_at, line=each.line)
        ):
            approvers.add(key_id)
    return bool(approvers - {promoter})


def _approvers(
    keys: Keyring, linked: Sequence[LinkedReceipt], subject: Mapping[str, str]
) -> set[str]:
    """Return the key ids of the actors that approved a subject."""
    key_ids = set()
    for receipt in (each.receipt for each in linked):
        key_id = keys.actors.get(str(receipt.evidence.get("actor")))
        if key_id is not None and _is_valid_approval(keys, receipt, subject, key_id):
            key_ids.add(key_id)
    return key_ids


def _is_valid_approval(
    keys: Keyring, receipt: Receipt, subject: Mapping[str, str], key_id: str
) -> bool:
    """Return whether a receipt is an approval of a subject, signed with a key."""
    if receipt.gate != GATE or not subject.items() <= receipt.subject.items():
        return False
    actor, signature = (str(receipt.evidence.get(part)) for part in ("actor", "signature"))
    text = _signed_text(receipt.subject, actor=actor, reason=receipt.reason)
    return keys.known[key_id].verify(signature, GATE, text)


def _signer(connection: Connection, keys: Keyring, line: int) -> tuple[str, bool]:
    """Return the id of the known key that signed a line, and whether it is a bridge signature.

    Signatures of unknown keys are ignored, because anybody can add them.
    """
    query = sa.select(signatures.c.key_id, signatures.c.kind).where(
        signatures.c.line >= line, signatures.c.key_id.in_(keys.known)
    )
    row = connection.execute(query.order_by(signatures.c.line).limit(1)).one()
    return str(row.key_id), row.kind != "change"


def _subject(
    connection: Connection, version: Version, *, pointer: ProductionPointer, promotion: str
) -> dict[str, str]:
    link = sa.select(version_receipts.c.id).where(
        version_receipts.c.model == version.model,
        version_receipts.c.number == version.number,
        version_receipts.c.receipt == promotion,
    )
    return {
        "candidate": version.candidate,
        "reference": reference_of(connection, version.model, pointer),
        "promotion": promotion,
        "move": str(pointer.revision + 1),
        # The digest of a line depends on all earlier lines, so it is unique to this registry.
        "line": log.find_line_digest(
            connection, version_receipts, connection.execute(link).scalar_one()
        ),
    }


def _signed_text(subject: Mapping[str, str], *, actor: str, reason: str) -> str:
    return digest_json([dict(subject), actor, reason])


def _finding(entry: HistoryEntry, what: str) -> RegistryFinding:
    return RegistryFinding(
        model=entry.model,
        version=entry.to_version,
        problem="signature",
        what=f"{entry.model}: entry {entry.id} of the history ({entry.action} to version "
        f"{entry.to_version}) {what}.",
        fix="Find out whose key it is. Roll back if the version should not be in production.",
    )
