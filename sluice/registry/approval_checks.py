"""Checks that actors signed their own changes, and that required approvals are recorded."""

from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from sluice.registry import evidence, log, log_signatures, queries, rollout_rows
from sluice.registry.approval import (
    approval_subject,
    approver_key_ids,
    is_approval,
    is_signed_approval,
)
from sluice.registry.approval_settings import strictest_settings
from sluice.registry.keyring import Keyring
from sluice.registry.records import HistoryEntry, ProductionPointer, RegistryFinding
from sluice.registry.tables import history, rollout_transitions, signatures

_KEY_FIX = "Find out who owns the key. Roll back if the version should not be in production."
_APPROVAL_FIX = (
    "Find out who promoted the version and why. Roll back if it should not be in production."
)


def check_required_approvals(
    connection: Connection, models: Sequence[str]
) -> Iterator[RegistryFinding]:
    """Yield a finding for each promotion that lacks the approval that its verdict required.

    Signatures are not verified; ``check_signers`` verifies them.

    Assumes:
        ``verification`` and ``log_verification`` had no findings.
    """
    for model in models:
        for entry in queries.load_history(connection, model):
            if entry.action != "promote":
                continue
            linked_receipts = evidence.load_linked_receipts(connection, model, entry.to_version)
            receipts = [each.receipt for each in linked_receipts]
            verdict_receipt = next(each for each in receipts if each.digest == entry.receipt)
            if not strictest_settings(None, verdict_receipt).required:
                continue
            subject = _load_approval_subject(connection, entry)
            if not any(is_approval(each, subject) for each in receipts):
                what = "was made without the approval that its verdict requires"
                yield _finding(entry, what, _APPROVAL_FIX)


def check_signers(
    connection: Connection, keys: Keyring, models: Sequence[str]
) -> Iterator[RegistryFinding]:
    """Yield findings about changes signed with another actor's key, and unapproved promotions.

    Assumes:
        ``log_verification`` and ``log_signatures`` had no findings: every row has its line in the
        log, and a known key has signed every line.
    """
    if not keys.key_id_by_actor:
        return
    history_line_numbers = log.load_line_numbers(connection, history)
    transition_line_numbers = log.load_line_numbers(connection, rollout_transitions)
    for model in models:
        for entry in queries.load_history(connection, model):
            line_number = history_line_numbers[log.encode_key([entry.id])]
            signer_key_id, must_be_own_key = _find_signer(connection, keys, line_number)
            if must_be_own_key and not keys.may_sign(signer_key_id, entry.actor):
                what = f"names {entry.actor!r} but is signed with another key"
                yield _finding(entry, what, _KEY_FIX)
            elif _needs_approval(connection, keys, entry, line_number) and not _is_approved(
                connection, keys, entry, signer_key_id
            ):
                what = "was made without the approval of another actor"
                yield _finding(entry, what, _APPROVAL_FIX)
        for rollout_id in rollout_rows.load_rollout_ids(connection, model):
            for transition in rollout_rows.load_transitions(connection, rollout_id):
                row_key = log.encode_key([rollout_id, transition.rollout.revision])
                signer_key_id, must_be_own_key = _find_signer(
                    connection, keys, transition_line_numbers[row_key]
                )
                if must_be_own_key and not keys.may_sign(signer_key_id, transition.actor):
                    yield RegistryFinding(
                        model=model,
                        version=transition.rollout.version,
                        problem="signature",
                        what=f"{model}: transition {transition.outcome} of rollout "
                        f"{rollout_id[:12]} names {transition.actor!r} but is signed with another "
                        "key.",
                        fix="Find out who owns the key; see sluice registry audit.",
                    )


def _needs_approval(
    connection: Connection, keys: Keyring, entry: HistoryEntry, line_number: int
) -> bool:
    """Return whether an entry is a promotion that required the approval of a second person.

    The writer of an entry could set the time of the entry to a time before ``two_person_since``,
    but a signature can prove that the entry was added later.
    """
    two_person_start = keys.two_person_since
    return (
        entry.action == "promote"
        and two_person_start is not None
        and (
            entry.at >= two_person_start
            or log_signatures.is_provably_after(
                connection, keys, two_person_start, line_number=line_number
            )
        )
    )


def _is_approved(
    connection: Connection, keys: Keyring, entry: HistoryEntry, promoter_key_id: str
) -> bool:
    """Return whether a promotion has an approval that was signed with a key of another person."""
    linked_receipts = evidence.load_linked_receipts(connection, entry.model, entry.to_version)
    subject = _load_approval_subject(connection, entry)
    key_ids = approver_key_ids(keys, linked_receipts, subject)
    # An approval remains valid if its key was retired after the approval.
    for each in linked_receipts:
        key_id = str(each.receipt.evidence.get("key_id"))
        retired_at = keys.retirement_times.get(key_id)
        if (
            retired_at is not None
            and is_signed_approval(keys, each.receipt, subject, key_id)
            and not log_signatures.is_provably_after(
                connection, keys, retired_at, line_number=each.line_number
            )
        ):
            key_ids.add(key_id)
    return bool(key_ids - {promoter_key_id})


def _load_approval_subject(connection: Connection, entry: HistoryEntry) -> dict[str, str]:
    """Return the subject that an approval of a recorded promotion must have."""
    return approval_subject(
        connection,
        queries.load_version(connection, entry.model, entry.to_version),
        pointer=ProductionPointer(version=entry.from_version, revision=(entry.revision or 0) - 1),
        promotion_digest=str(entry.receipt),
    )


def _find_signer(connection: Connection, keys: Keyring, line_number: int) -> tuple[str, bool]:
    """Return the id of the known key that signed a line, and whether the actor must own this key.

    The actor need not own the key in two cases. With a bridge signature, another person signed
    unsigned lines after a review. A signature from before schema 6 names no actor. Signatures of
    unknown keys are ignored, because anybody can add them.
    """
    query = sa.select(signatures.c.key_id, signatures.c.kind).where(
        signatures.c.line >= line_number, signatures.c.key_id.in_(keys.known_keys)
    )
    row = connection.execute(query.order_by(signatures.c.line).limit(1)).one()
    return str(row.key_id), row.kind == "change"


def _finding(entry: HistoryEntry, what: str, fix: str) -> RegistryFinding:
    return RegistryFinding(
        model=entry.model,
        version=entry.to_version,
        problem="signature",
        what=f"{entry.model}: entry {entry.id} of the history ({entry.action} to version "
        f"{entry.to_version}) {what}.",
        fix=fix,
    )
