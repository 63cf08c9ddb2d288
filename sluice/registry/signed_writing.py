"""Changes of the registry, signed where there is a key; and what a person signs by itself."""

import contextlib
from collections.abc import Iterator

from sqlalchemy import Connection

from sluice.base.errors import GateBlocked
from sluice.base.receipts import Receipt
from sluice.registry import (
    admission,
    approval,
    evidence,
    log,
    log_verification,
    promotion,
    queries,
    signed_lines,
    unsigned,
)
from sluice.registry.keyring import Keyring
from sluice.registry.refusal_recording import RefusalRecording, records_refusals
from sluice.registry.traced import traced
from sluice.registry.unsigned import UnsignedLine


class SignedWriting(RefusalRecording):
    """A registry whose changes are signed with its key; bridges and approvals."""

    @contextlib.contextmanager
    def _write(self, actor: str | None = None) -> Iterator[Connection]:
        """Yield a connection whose changes are all kept, and signed when there is a key.

        Args:
            actor: Who makes the change; None for one that the history does not tell of.

        Raises:
            GateBlocked: The actor's key is another one.
            IntegrityError: Something before the change is not signed, or signed lines are lost.
        """
        keys, anchor = self._keys, self._anchor
        name = "" if keys is None else keys.require_own(actor)
        with contextlib.ExitStack() as kept_outside, self._database.write() as connection:
            # First of all locks, so that nobody else appends between check and signature.
            head = log.lock_head(connection)
            if keys is not None:
                signed_lines.require_signed(connection, keys, head, anchor=anchor)
            yield connection
            if keys is not None:
                signed = signed_lines.sign(
                    connection,
                    keys,
                    since=head.lines,
                    kind="change",
                    actor=name,
                    at=self._clock(),
                )
                if signed is not None and anchor is not None:
                    kept_outside.enter_context(anchor.writing(signed))

    def _require_whole(self, connection: Connection) -> None:
        """Refuse to move production with a key on a log that was changed anywhere.

        In the transaction that moves it: reading weights takes seconds, in which somebody may
        rewrite what was checked before.
        """
        if self._keys is not None:
            signed_lines.require_whole(connection)

    def unsigned(self) -> tuple[log.Head, list[UnsignedLine]]:
        """Return where the log ends, and every line that no known key has signed.

        The rows are as the log says: whoever signs that end of the log signs what is shown.

        Raises:
            IntegrityError: The last signature or the log does not hold.
        """
        with self._database.read() as connection:
            signed_lines.require_sound(log_verification.check(connection))
            since = signed_lines.last_signed_line(connection, self._require_keys())
            return log.load_head(connection), unsigned.unsigned_lines(connection, since=since)

    @records_refusals("sign")
    def sign(self, expected: log.Head, *, actor: str) -> log.Head:
        """Sign the lines that no key has signed yet, on a person's word; return the head.

        Args:
            expected: Where the log ended when the person saw the lines.
            actor: Who answers for them.

        Raises:
            GateBlocked: The log has gone on since, or the actor's key is another one.
            IntegrityError: The log does not hold, or lost or rewrote what was signed before.
        """
        keys, anchor = self._require_keys(), self._anchor
        name = keys.require_own(actor)
        with contextlib.ExitStack() as kept_outside, self._database.write() as connection:
            head = log.lock_head(connection)
            if head != expected:
                raise GateBlocked(
                    f"The log ended with line {expected.lines} when its lines were shown, and ends "
                    f"with line {head.lines} now.",
                    fix="Look at the lines and sign again.",
                )
            signed_lines.require_anchored(connection, keys, head, anchor=anchor)
            signed_lines.require_sound(log_verification.check(connection))
            since = signed_lines.last_signed_line(connection, keys)
            signed = signed_lines.sign(
                connection, keys, since=since, kind="bridge", actor=name, at=self._clock()
            )
            if signed is not None and anchor is not None:
                kept_outside.enter_context(anchor.writing(signed))
        return head

    def _require_keys(self) -> Keyring:
        assert self._keys is not None, "the caller opens the ledger with a key to sign"
        return self._keys

    @traced
    @records_refusals("approve")
    def approve(self, model: str, version: int, *, actor: str, reason: str) -> Receipt:
        """Record that a person agrees to a promotion, signed with that person's key.

        It is of the present promotion receipt and of the next move of the pointer; a newer verdict
        or any move, also away and back, needs another approval.

        Raises:
            UnknownVersion: There is no such version.
            GateBlocked: The evidence does not allow the promotion; or the key is not the actor's.
            IntegrityError: A receipt or the lineage was changed after it was written.
        """
        promotion.require_words(actor=actor, reason=reason)
        keys, at = self._require_keys(), self._clock()
        with self._write(actor) as connection:
            found = queries.find_version(connection, model, number=version)
            if found is None:
                raise admission.unknown(model, version, queries.model_names(connection))
            queries.lock_model(connection, model, at=at)
            pointer = queries.load_pointer(connection, model)
            judged = promotion.require_evidence(
                connection, found, pointer=pointer, reinstate=True, rules=None
            )
            receipt = approval.give(
                connection,
                keys,
                found,
                pointer=pointer,
                promotion=judged,
                actor=actor,
                reason=reason,
                at=at,
            )
            evidence.link_receipts(connection, [receipt], model=model, number=version, at=at)
        return receipt
