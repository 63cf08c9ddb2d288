"""Approvals: the receipt by which a second person agrees to a promotion, signed with their own key.

An approval is of one candidate against one reference on one promotion receipt. It is given with the
private half of the approver's key, so a promoter cannot write one.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.digests import digest_json
from sluice.errors import GateBlocked
from sluice.receipts import Receipt
from sluice.registry import evidence, log, queries, rollout_rows
from sluice.registry.keyring import KNOWN_KEYS, Keyring
from sluice.registry.promotion import reference_of
from sluice.registry.records import Finding, HistoryEntry, LinkedReceipt, Pointer, Version
from sluice.registry.tables import history, rollout_transitions, signatures

GATE = "approval"


def give(
    keys: Keyring,
    version: Version,
    *,
    reference: str,
    promotion: str,
    actor: str,
    reason: str,
    at: datetime,
) -> Receipt:
    """Return the signed receipt of an approval.

    Args:
        keys: The approver's.
        version: To be promoted.
        reference: What the promotion receipt compared it with.
        promotion: Digest of that receipt.
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
    subject = _subject(version, reference=reference, promotion=promotion)
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
    reference = reference_of(connection, version.model, pointer)
    subject = _subject(version, reference=reference, promotion=promotion)
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
            signer = _signer(connection, moves[log.key_text([entry.id])])
            if signer is None:
                continue
            if not keys.may_sign(signer, entry.actor):
                yield _found(entry, f"names {entry.actor!r} and is signed with another key")
            elif _needs_approval(keys, entry) and not _is_approved(connection, keys, entry, signer):
                yield _found(entry, "was made without the approval of another actor")
        for rollout in rollout_rows.model_rollouts(connection, model):
            for transition in rollout_rows.load_transitions(connection, rollout):
                key = log.key_text([rollout, transition.rollout.revision])
                signer = _signer(connection, steps[key])
                if signer is not None and not keys.may_sign(signer, transition.actor):
                    yield Finding(
                        model=model,
                        version=transition.rollout.version,
                        problem="signature",
                        what=f"{model}: transition {transition.outcome} of rollout {rollout[:12]} "
                        f"names {transition.actor!r} and is signed with another key.",
                        fix="Ask whose key it is; see sluice registry audit.",
                    )


def _needs_approval(keys: Keyring, entry: HistoryEntry) -> bool:
    since = keys.two_person_since
    return entry.action == "promote" and since is not None and entry.at >= since


def _is_approved(connection: Connection, keys: Keyring, entry: HistoryEntry, promoter: str) -> bool:
    linked = evidence.load_linked_receipts(connection, entry.model, entry.to_version)
    subject = {
        "candidate": queries.load_version(connection, entry.model, entry.to_version).candidate,
        "promotion": str(entry.receipt),
    }
    return bool(_approvers(keys, linked, subject) - {promoter})


def _approvers(
    keys: Keyring, linked: Sequence[LinkedReceipt], subject: Mapping[str, str]
) -> set[str]:
    """Return the ids of the keys of actors that approved something."""
    found = set()
    for receipt in (each.receipt for each in linked):
        if receipt.gate != GATE or not subject.items() <= receipt.subject.items():
            continue
        actor = str(receipt.evidence.get("actor"))
        key_id = keys.actors.get(actor, "")
        text = _text(receipt.subject, actor=actor, reason=receipt.reason)
        signature = str(receipt.evidence.get("signature"))
        if key_id and keys.known[key_id].fits(signature, GATE, text):
            found.add(key_id)
    return found


def _signer(connection: Connection, line: int) -> str | None:
    """Return the key id of the change that a line belongs to; None for a bridge, or unsigned."""
    query = sa.select(signatures.c.key_id, signatures.c.kind).where(signatures.c.line >= line)
    row = connection.execute(query.order_by(signatures.c.line).limit(1)).first()
    return str(row.key_id) if row is not None and row.kind == "change" else None


def _subject(version: Version, *, reference: str, promotion: str) -> dict[str, str]:
    return {"candidate": version.candidate, "reference": reference, "promotion": promotion}


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
