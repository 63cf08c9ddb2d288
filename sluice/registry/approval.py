"""Approvals: the receipt by which a second person agrees to a promotion, signed with their own key.

An approval is of one candidate against one reference on one promotion receipt, and of one move of
one registry's pointer: given before a rollback, or in another registry, it counts no more. It is
given with the private half of the approver's key, so a promoter cannot write one.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.base.digests import digest_json
from sluice.base.errors import GateBlocked
from sluice.base.receipts import Receipt
from sluice.registry import evidence, log, queries, rollout_rows, signed_lines
from sluice.registry.keyring import KNOWN_KEYS, Keyring
from sluice.registry.promotion import reference_of
from sluice.registry.records import Finding, HistoryEntry, LinkedReceipt, Pointer, Version
from sluice.registry.tables import (
    history,
    rollout_transitions,
    signatures,
    version_receipts,
)

GATE = "approval"


def give(
    connection: Connection,
    keys: Keyring,
    version: Version,
    *,
    pointer: Pointer,
    promotion: str,
    actor: str,
    reason: str,
    at: datetime,
) -> Receipt:
    """Return the signed receipt of an approval.

    Args:
        connection: Of the caller's transaction.
        keys: The approver's.
        version: To be promoted.
        pointer: Where production points.
        promotion: Digest of the promotion receipt that it rests on.
        actor: The approver.
        reason: Why, for the record.
        at: When.

    Raises:
        GateBlocked: Names are not bound to keys here, or the key is another actor's.
    """
    if not keys.actors:
        raise GateBlocked(
            f"An approval is signed with a personal key, and there is no {KNOWN_KEYS} beside "
            f"{keys.signing.path}.",
            fix=f"List every actor's public key in {KNOWN_KEYS}.",
        )
    subject = _subject(connection, version, pointer=pointer, promotion=promotion)
    text = _text(subject, actor=keys.require_own(actor), reason=reason)
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


def require(
    connection: Connection,
    keys: Keyring | None,
    version: Version,
    *,
    pointer: Pointer,
    promotion: str,
    at: datetime,
) -> None:
    """Refuse a promotion that needs a second person and has none.

    Args:
        connection: Of the caller's transaction.
        keys: The promoter's; None where nothing is signed.
        version: To be promoted.
        pointer: Where production points.
        promotion: Digest of the promotion receipt that it rests on.
        at: When.

    Raises:
        GateBlocked: Nobody but the promoter approved.
    """
    if keys is None or keys.two_person_since is None or at < keys.two_person_since:
        return
    subject = _subject(connection, version, pointer=pointer, promotion=promotion)
    linked = evidence.load_linked_receipts(connection, version.model, version.number)
    if not _approvers(keys, linked, subject) - {keys.signing.key_id}:
        raise GateBlocked(
            f"{version.model} version {version.number} needs the approval of another actor than "
            "its promoter, and none is recorded for this version against what is in production.",
            fix=f"Ask another person: sluice registry approve {version.model} {version.number} "
            "--reason '...' --key THEIR_KEY",
        )


def check(connection: Connection, keys: Keyring, models: Sequence[str]) -> Iterator[Finding]:
    """Yield changes signed with another actor's key, and promotions that nobody else approved.

    Assumes:
        ``log_verification`` found nothing: every row has its line in the log.
    """
    if not keys.actors:
        return
    moves = log.line_numbers(connection, history)
    steps = log.line_numbers(connection, rollout_transitions)
    for model in models:
        for entry in queries.load_history(connection, model):
            line = moves[log.key_text([entry.id])]
            signer, is_bridged = _signer(connection, keys, line)
            if not is_bridged and not keys.may_sign(signer, entry.actor):
                yield _found(entry, f"names {entry.actor!r} and is signed with another key")
            elif _needs_approval(connection, keys, entry, line) and not _is_approved(
                connection, keys, entry, signer
            ):
                yield _found(entry, "was made without the approval of another actor")
        for rollout in rollout_rows.model_rollouts(connection, model):
            for transition in rollout_rows.load_transitions(connection, rollout):
                key = log.key_text([rollout, transition.rollout.revision])
                signer, is_bridged = _signer(connection, keys, steps[key])
                if not is_bridged and not keys.may_sign(signer, transition.actor):
                    yield Finding(
                        model=model,
                        version=transition.rollout.version,
                        problem="signature",
                        what=f"{model}: transition {transition.outcome} of rollout {rollout[:12]} "
                        f"names {transition.actor!r} and is signed with another key.",
                        fix="Ask whose key it is; see sluice registry audit.",
                    )


def _needs_approval(connection: Connection, keys: Keyring, entry: HistoryEntry, line: int) -> bool:
    """Say whether a move is a promotion from the time that needs two people, whatever it says."""
    since = keys.two_person_since
    return (
        entry.action == "promote"
        and since is not None
        and (entry.at >= since or signed_lines.has_come(connection, keys, since, line=line))
    )


def _is_approved(connection: Connection, keys: Keyring, entry: HistoryEntry, promoter: str) -> bool:
    linked = evidence.load_linked_receipts(connection, entry.model, entry.to_version)
    subject = _subject(
        connection,
        queries.load_version(connection, entry.model, entry.to_version),
        pointer=Pointer(version=entry.from_version, revision=(entry.revision or 0) - 1),
        promotion=str(entry.receipt),
    )
    approvers = _approvers(keys, linked, subject)
    for each in linked:  # a key that has ended since approved what it approved before
        key_id = str(each.receipt.evidence.get("key_id"))
        end = keys.retired.get(key_id)
        if (
            end is not None
            and _is_given(keys, each.receipt, subject, key_id)
            and not signed_lines.has_come(connection, keys, end, line=each.line)
        ):
            approvers.add(key_id)
    return bool(approvers - {promoter})


def _approvers(
    keys: Keyring, linked: Sequence[LinkedReceipt], subject: Mapping[str, str]
) -> set[str]:
    """Return the ids of the keys of actors that approved something."""
    found = set()
    for receipt in (each.receipt for each in linked):
        key_id = keys.actors.get(str(receipt.evidence.get("actor")))
        if key_id is not None and _is_given(keys, receipt, subject, key_id):
            found.add(key_id)
    return found


def _is_given(keys: Keyring, receipt: Receipt, subject: Mapping[str, str], key_id: str) -> bool:
    """Say whether a receipt is an approval of something, signed with a key."""
    if receipt.gate != GATE or not subject.items() <= receipt.subject.items():
        return False
    actor, signature = (str(receipt.evidence.get(part)) for part in ("actor", "signature"))
    text = _text(receipt.subject, actor=actor, reason=receipt.reason)
    return keys.known[key_id].fits(signature, GATE, text)


def _signer(connection: Connection, keys: Keyring, line: int) -> tuple[str, bool]:
    """Return the id of the known key that signed a line, and whether it did so as a bridge.

    Only known keys: a row that names another one proves nothing, and anybody can add it.
    """
    query = sa.select(signatures.c.key_id, signatures.c.kind).where(
        signatures.c.line >= line, signatures.c.key_id.in_(keys.known)
    )
    row = connection.execute(query.order_by(signatures.c.line).limit(1)).one()
    return str(row.key_id), row.kind != "change"


def _subject(
    connection: Connection, version: Version, *, pointer: Pointer, promotion: str
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
        # The digest of a line is chained to all before it: no other registry has it.
        "line": log.find_digest(
            connection, version_receipts, connection.execute(link).scalar_one()
        ),
    }


def _text(subject: Mapping[str, str], *, actor: str, reason: str) -> str:
    return digest_json([dict(subject), actor, reason])


def _found(entry: HistoryEntry, what: str) -> Finding:
    return Finding(
        model=entry.model,
        version=entry.to_version,
        problem="signature",
        what=f"{entry.model}: line {entry.id} of the history ({entry.action} to version "
        f"{entry.to_version}) {what}.",
        fix="Ask whose key it is; roll back what should not be in production.",
    )
