"""Ledger that signs its changes, and in which people sign unsigned lines and approve promotions."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection

from sluice.base.digests import short
from sluice.base.errors import GateBlocked, SettingsError
from sluice.base.receipts import Receipt
from sluice.registry import (
    approval,
    evidence,
    log,
    log_signatures,
    log_verification,
    promotion,
    queries,
    unsigned_lines,
    validation,
)
from sluice.registry.keyring import Keyring
from sluice.registry.refusal_recording import RefusalRecordingLedger, records_refusals
from sluice.registry.spans import spanned
from sluice.registry.unsigned_lines import UnsignedLine


class SignedLedger(RefusalRecordingLedger):
    """Ledger that signs its changes if it has a key; adds the methods ``sign`` and ``approve``."""

    @contextlib.contextmanager
    def _write(self, actor: str | None = None) -> Iterator[Connection]:
        """Yield the connection of a write transaction, which is signed if there is a key.

        Args:
            actor: Actor of the change; None for a change without a history entry.

        Raises:
            GateBlocked: The key does not belong to the actor.
            IntegrityError: An earlier line is not signed, or signed lines were lost.
        """
        keys, anchor = self._keys, self._anchor
        signer = "" if keys is None else keys.require_own_actor(actor)
        # The anchor is written when its context is exited, which is after the commit.
        with contextlib.ExitStack() as anchor_writing, self._database.write() as connection:
            # The head is locked first, so that nobody can append a line between the check and the
            # signature.
            head = log.lock_head(connection)
            if keys is not None:
                log_signatures.require_signed(connection, keys, head, anchor=anchor)
            yield connection
            if keys is not None:
                signed_line = log_signatures.sign(
                    connection,
                    keys,
                    since=head.num_lines,
                    kind="change",
                    actor=signer,
                    at=self._clock(),
                )
                if signed_line is not None and anchor is not None:
                    anchor_writing.enter_context(anchor.writing(signed_line))

    def _require_valid_chain(self, connection: Connection) -> None:
        """Reject the change if the ledger has a key and any line of the log was changed.

        The caller calls this method in the transaction that moves the production pointer or starts
        a rollout. A promotion also checks rows of the registry before it loads the weights, but
        loading takes seconds, and somebody could change rows meanwhile.
        """
        if self._keys is not None:
            log_signatures.require_valid_chain(connection)

    def unsigned_lines(self) -> tuple[log.LogHead, list[UnsignedLine]]:
        """Return the head of the log and every line that is not signed by a known key.

        The rows are verified against the log, so a bridge signature of this head covers exactly the
        returned lines.

        Raises:
            IntegrityError: The last signature or the log is invalid.
        """
        with self._database.read() as connection:
            log_signatures.require_no_findings(log_verification.check(connection))
            last_signed_line = log_signatures.last_signed_line(connection, self._require_keys())
            lines = unsigned_lines.describe_lines(connection, after_line=last_signed_line)
            return log.load_head(connection), lines

    @records_refusals("sign")
    def sign(self, reviewed_head: log.LogHead, *, actor: str) -> log.LogHead:
        """Sign the unsigned lines after a person has reviewed them; return the signed head.

        Args:
            reviewed_head: Head of the log when the person reviewed the lines.
            actor: Person who takes responsibility for the lines.

        Raises:
            GateBlocked: The log was changed since the review; or the key does not belong to the
                actor.
            IntegrityError: The log is invalid, or signed lines were lost or rewritten.
        """
        keys, anchor = self._require_keys(), self._anchor
        signer = keys.require_own_actor(actor)
        with contextlib.ExitStack() as anchor_writing, self._database.write() as connection:
            head = log.lock_head(connection)
            if head != reviewed_head:
                raise GateBlocked(
                    f"The log ended with line {reviewed_head.num_lines} "
                    f"({short(reviewed_head.digest)}) when you reviewed it, and now ends with line "
                    f"{head.num_lines} ({short(head.digest)}).",
                    fix="Review the new lines and sign again.",
                )
            log_signatures.require_anchor_match(connection, keys, head, anchor=anchor)
            log_signatures.require_no_findings(log_verification.check(connection))
            since = log_signatures.last_signed_line(connection, keys)
            signed_line = log_signatures.sign(
                connection, keys, since=since, kind="bridge", actor=signer, at=self._clock()
            )
            if signed_line is not None and anchor is not None:
                anchor_writing.enter_context(anchor.writing(signed_line))
        return head

    def _require_keys(self) -> Keyring:
        assert self._keys is not None, "signing requires a ledger opened with a key"
        return self._keys

    @spanned
    @records_refusals("approve")
    def approve(self, model: str, version: int, *, actor: str, reason: str) -> Receipt:
        """Record a person's approval of a promotion; sign it if the keyring lists actors' keys.

        The approval is valid for the current promotion receipt and the next move of the pointer.
        After a newer verdict or any move of the pointer, a new approval is required.

        Raises:
            UnknownVersion: There is no such version.
            SettingsError: The changes of this registry are signed, and the ledger has no key.
            GateBlocked: The evidence does not allow the promotion, or the key does not belong to
                the actor.
            IntegrityError: A receipt or the lineage was changed after it was written.
        """
        promotion.require_actor_and_reason(actor=actor, reason=reason)
        keys, at = self._keys, self._clock()
        with self._write(actor) as connection:
            if keys is None and log_signatures.has_signatures(connection):
                raise SettingsError(
                    "The changes of this registry are signed, so an approval requires a key file.",
                    fix="Give your own file with --key or SLUICE_REGISTRY_KEY. To create one: "
                    "openssl genpkey -algorithm ed25519 -out NAME.key",
                )
            registered_version = queries.find_version(connection, model, number=version)
            if registered_version is None:
                raise validation.unknown_version_error(
                    model, version, queries.model_names(connection)
                )
            queries.lock_model(connection, model, at=at)
            pointer = queries.load_pointer(connection, model)
            promotion_digest = promotion.require_evidence(
                connection,
                registered_version,
                pointer=pointer,
                # A person may also approve a version that was rolled back. Its promotion still
                # needs --reinstate.
                reinstate=True,
                gate_settings_digest=None,
            )
            receipt = approval.create_approval(
                connection,
                keys,
                registered_version,
                pointer=pointer,
                promotion_digest=promotion_digest,
                actor=actor,
                reason=reason,
                at=at,
            )
            evidence.link_receipts(connection, [receipt], model=model, number=version, at=at)
            queries.append_history(
                connection,
                at=at,
                model=model,
                action="approve",
                from_version=None,
                to_version=version,
                actor=actor,
                reason=reason,
                receipt=receipt.digest,
                revision=None,
            )
        return receipt
