"""Approvals: receipts by which a person agrees to a promotion.

An approval is valid for one candidate, reference and promotion receipt, and for one move of the
production pointer in one registry. An approval from before a rollback, or from another registry,
is therefore not valid. If ``known_keys.yaml`` lists the keys of the actors, an approval is signed
with the approver's private key, so that nobody else can create it.

A promotion requires an approval in each of these cases:

- The pipeline has the setting ``approval.required``.
- The pipeline had this setting when the promotion receipt was written.
- ``known_keys.yaml`` has a time ``two_person_since``, and this time has passed.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from pydantic import AwareDatetime, TypeAdapter, ValidationError
from sqlalchemy import Connection

from sluice.base.digests import digest_json
from sluice.base.errors import ApprovalMissing
from sluice.base.receipts import Receipt
from sluice.registry import evidence, log
from sluice.registry.approval_settings import ApprovalSettings, strictest_settings
from sluice.registry.keyring import Keyring
from sluice.registry.promotion import reference_of, require_evidence
from sluice.registry.records import (
    Approval,
    ApprovalStatus,
    LinkedReceipt,
    ProductionPointer,
    Version,
)
from sluice.registry.tables import version_receipts

APPROVAL_GATE = "approval"
_APPROVED_AT = "approved_at"
"""Role of the approval's time in its subject. The time is there, because the signature covers the
subject."""
_TIME_PARSER = TypeAdapter(AwareDatetime)


def create_approval(
    connection: Connection,
    keys: Keyring | None,
    version: Version,
    *,
    pointer: ProductionPointer,
    promotion_digest: str,
    actor: str,
    reason: str,
    at: datetime,
) -> Receipt:
    """Return the receipt of an approval, signed if the keyring lists the keys of the actors.

    Args:
        connection: Connection of the caller's transaction.
        keys: Keyring of the approver; None if changes are not signed.
        version: Version to promote.
        pointer: Current production pointer.
        promotion_digest: Digest of the promotion receipt to approve.
        actor: Name of the approver.
        reason: Reason for the record.
        at: Time of the approval.

    Raises:
        GateBlocked: The signing key belongs to another actor.
    """
    subject = approval_subject(
        connection, version, pointer=pointer, promotion_digest=promotion_digest
    )
    subject[_APPROVED_AT] = at.isoformat()
    signature_fields = {}
    if keys is not None and keys.key_id_by_actor:
        text = _signed_text(subject, actor=keys.require_own_actor(actor), reason=reason)
        signature_fields = {
            "key_id": keys.signing_key.key_id,
            "signature": keys.signing_key.sign(APPROVAL_GATE, text),
        }
    return Receipt(
        gate=APPROVAL_GATE,
        outcome="pass",
        passed=True,
        subject=subject,
        evidence={"actor": actor, **signature_fields},
        reason=reason,
        decided_at=at,
    )


def require_evidence_and_approval(
    connection: Connection,
    keys: Keyring | None,
    version: Version,
    pointer: ProductionPointer,
    *,
    gate_settings_digest: str | None,
    approval_settings: ApprovalSettings | None,
    at: datetime,
    reinstate: bool = False,
    valid_at: datetime | None = None,
) -> str:
    """Return the digest of the promotion receipt of a version that may go into production.

    The gates are checked by ``promotion.require_evidence``, then the approval by ``find_status``.
    The arguments are passed to these functions; ``approval_settings`` are the ``settings`` of
    ``find_status``.

    Raises:
        GateBlocked: See ``promotion.require_evidence``.
        ApprovalMissing: No valid approval is recorded.
    """
    digest = require_evidence(
        connection,
        version,
        pointer=pointer,
        reinstate=reinstate,
        gate_settings_digest=gate_settings_digest,
    )
    require_approval(
        connection,
        keys,
        version,
        pointer=pointer,
        promotion_digest=digest,
        settings=approval_settings,
        at=at,
        valid_at=valid_at,
    )
    return digest


def require_approval(
    connection: Connection,
    keys: Keyring | None,
    version: Version,
    *,
    pointer: ProductionPointer,
    promotion_digest: str,
    settings: ApprovalSettings | None,
    at: datetime,
    valid_at: datetime | None = None,
) -> None:
    """Reject a promotion without a required approval; for the arguments, see ``find_status``.

    Raises:
        ApprovalMissing: No valid approval is recorded.
    """
    status = find_status(
        connection,
        keys,
        version,
        pointer=pointer,
        promotion_digest=promotion_digest,
        settings=settings,
        at=at,
        valid_at=valid_at,
    )
    if status.problem:
        raise ApprovalMissing(status.problem, fix=status.remedy)


def find_status(
    connection: Connection,
    keys: Keyring | None,
    version: Version,
    *,
    pointer: ProductionPointer,
    promotion_digest: str,
    settings: ApprovalSettings | None,
    at: datetime,
    valid_at: datetime | None = None,
) -> ApprovalStatus:
    """Return which approval a promotion requires, and whether it is recorded.

    Args:
        connection: Connection of the caller's transaction.
        keys: Keyring of the promoter; None if changes are not signed.
        version: Version to promote.
        pointer: Current production pointer.
        promotion_digest: Digest of the promotion receipt.
        settings: Settings of the pipeline; None for a command that does not know them. The
            promotion receipt may require an approval too.
        at: Time of the promotion.
        valid_at: Time at which the approval must not have expired; None means ``at``. At the end of
            a rollout, this time is the start of the rollout.
    """
    linked_receipts = evidence.load_linked_receipts(connection, version.model, version.number)
    promotion_receipt = next(
        each.receipt for each in linked_receipts if each.receipt.digest == promotion_digest
    )
    approval_requirement = strictest_settings(settings, promotion_receipt)
    subject = approval_subject(
        connection, version, pointer=pointer, promotion_digest=promotion_digest
    )
    approvals = [each.receipt for each in linked_receipts if each.receipt.gate == APPROVAL_GATE]
    matching_approvals = [each for each in approvals if is_approval(each, subject)]
    needs_second_person = False
    if keys is not None and keys.key_id_by_actor:
        key_ids = approver_key_ids(keys, linked_receipts, subject)
        needs_second_person = keys.two_person_since is not None and at >= keys.two_person_since
        if needs_second_person:
            key_ids -= {keys.signing_key.key_id}
        matching_approvals = [
            each
            for each in matching_approvals
            for key_id in key_ids
            if is_signed_approval(keys, each, subject, key_id)
        ]
    newest_approval = (
        _as_approval(matching_approvals[-1], approval_requirement) if matching_approvals else None
    )
    problem = remedy = ""
    version_name = f"{version.model} version {version.number}"
    command = f"sluice registry approve {version.model} {version.number} --reason '...'"
    if needs_second_person and newest_approval is None:
        problem = (
            f"The promotion of {version_name} requires the approval of an actor other than its "
            "promoter. No such approval is recorded for the replacement of the current production "
            "version."
        )
        remedy = f"Ask another person to run: {command} --key THEIR_KEY"
    elif approval_requirement.required and (
        newest_approval is None or not newest_approval.is_valid_at(valid_at or at)
    ):
        problem = (
            f"{version_name} waits for an approval, which is valid for "
            f"{approval_requirement.expires_h:g} h. "
            f"{_explain_missing_approval(newest_approval, approvals)}"
        )
        remedy = f"Run: {command}"
    return ApprovalStatus(
        required=needs_second_person or approval_requirement.required,
        approval=newest_approval,
        problem=problem,
        remedy=remedy,
    )


def approver_key_ids(
    keys: Keyring, linked_receipts: Sequence[LinkedReceipt], subject: Mapping[str, str]
) -> set[str]:
    """Return the key ids of the actors that approved a subject."""
    key_ids = set()
    for receipt in (each.receipt for each in linked_receipts):
        key_id = keys.key_id_by_actor.get(str(receipt.evidence.get("actor")))
        if key_id is not None and is_signed_approval(keys, receipt, subject, key_id):
            key_ids.add(key_id)
    return key_ids


def is_signed_approval(
    keys: Keyring, receipt: Receipt, subject: Mapping[str, str], key_id: str
) -> bool:
    """Return whether a receipt is an approval of a subject that was signed with this key."""
    if not is_approval(receipt, subject):
        return False
    actor, signature = (str(receipt.evidence.get(name)) for name in ("actor", "signature"))
    text = _signed_text(receipt.subject, actor=actor, reason=receipt.reason)
    return keys.known_keys[key_id].verify(signature, APPROVAL_GATE, text)


def is_approval(receipt: Receipt, subject: Mapping[str, str]) -> bool:
    """Return whether a receipt is an approval of a subject; its signature is not verified."""
    return receipt.gate == APPROVAL_GATE and subject.items() <= receipt.subject.items()


def approval_subject(
    connection: Connection, version: Version, *, pointer: ProductionPointer, promotion_digest: str
) -> dict[str, str]:
    """Return the subject of an approval: digests, and the number of the pointer's next move."""
    select_link_id = sa.select(version_receipts.c.id).where(
        version_receipts.c.model == version.model,
        version_receipts.c.number == version.number,
        version_receipts.c.receipt == promotion_digest,
    )
    return {
        "candidate": version.candidate,
        "reference": reference_of(connection, version.model, pointer),
        "promotion": promotion_digest,
        "move": str(pointer.revision + 1),
        # The digest of a line depends on all earlier lines, so it is unique to this registry.
        "line": log.find_line_digest(
            connection, version_receipts, connection.execute(select_link_id).scalar_one()
        ),
    }


def _as_approval(receipt: Receipt, approval_requirement: ApprovalSettings) -> Approval:
    try:
        approved_at = _TIME_PARSER.validate_python(receipt.subject.get(_APPROVED_AT))
    except ValidationError:  # the receipt does not record its time
        approved_at = None
    return Approval(
        actor=str(receipt.evidence.get("actor", "")),
        reason=receipt.reason,
        approved_at=approved_at,
        expires_at=approved_at + approval_requirement.lifetime
        if approval_requirement.required and approved_at
        else None,
    )


def _explain_missing_approval(
    newest_approval: Approval | None, approvals: Sequence[Receipt]
) -> str:
    """Return a sentence that says why no recorded approval is valid.

    Args:
        newest_approval: Newest approval of the promotion, which has expired or has no time; None if
            the promotion has no approval.
        approvals: All approvals of the version, oldest first.
    """
    if newest_approval is not None and newest_approval.expires_at is not None:
        return (
            f"The approval by {newest_approval.actor} expired at "
            f"{_format_time(newest_approval.expires_at)}."
        )
    if newest_approval is not None:
        return f"The approval by {newest_approval.actor} does not record its time."
    if approvals:
        last_approval = approvals[-1]
        return (
            f"The approval by {last_approval.evidence.get('actor')} at "
            f"{_format_time(last_approval.decided_at)} is about another verdict or production "
            "version, or is not signed with the approver's key."
        )
    return "No approval of this version is recorded."


def _signed_text(subject: Mapping[str, str], *, actor: str, reason: str) -> str:
    return digest_json([dict(subject), actor, reason])


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
