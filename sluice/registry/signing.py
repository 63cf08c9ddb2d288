"""Signatures of the log's head with a key file (HMAC-SHA256).

They protect against whoever can write the database and does not have the key: a new chain cannot
be signed, so ``verify`` with the key finds it. They do not protect against whoever has the key,
since the same key signs and verifies, nor against an old database put back whole: for that, note
a head elsewhere.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from sluice.errors import IntegrityError, SettingsError
from sluice.registry.log import Head, load_head, lock_head
from sluice.registry.records import Finding
from sluice.registry.tables import log, signatures

MIN_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret that signs and verifies."""

    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a key file; every byte of it counts.

        Raises:
            SettingsError: It cannot be read, or is too short to be a secret.
        """
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise SettingsError(
                f"The key file {path} cannot be read ({error.strerror}).",
                fix="Name a file of random bytes: openssl rand -out registry.key 32",
            ) from error
        if len(secret) < MIN_KEY_BYTES:
            raise SettingsError(
                f"A key file has at least {MIN_KEY_BYTES} bytes, {path} has {len(secret)}.",
                fix="Make one: openssl rand -out registry.key 32",
            )
        return cls(secret)

    @property
    def key_id(self) -> str:
        """Tells keys apart, and says nothing about the secret."""
        return self.sign("key id", "")[:16]

    def sign(self, what: str, text: str) -> str:
        """Return the signature of ``text``; ``what`` keeps signatures of other things apart."""
        message = f"sluice {what}\n{text}".encode()
        return hmac.new(self.secret, message, hashlib.sha256).hexdigest()

    def fits(self, signature: str, what: str, text: str) -> bool:
        """Say whether this key made the signature."""
        return hmac.compare_digest(signature.encode(), self.sign(what, text).encode())


def sign_head(connection: Connection, key: SigningKey, *, at: datetime) -> Head:
    """Sign the log's head in the caller's transaction; a signed head is left as it is.

    Raises:
        IntegrityError: What this key signed last is not in the log any more.
    """
    head = lock_head(connection)
    signed = _signed(connection, key)
    if signed:
        newest = signed[-1]
        problem = _problem(connection, key, newest)
        if problem is not None:
            raise IntegrityError(
                problem,
                cause="The log was rewritten after it was signed.",
                fix="Restore the database from a backup; sign nothing before sluice registry "
                "verify finds nothing.",
            )
        if newest.line == head.lines:
            return head
    if head.lines:
        connection.execute(
            sa.insert(signatures).values(
                key_id=key.key_id,
                line=head.lines,
                digest=head.digest,
                signature=key.sign("log head", _text(head.lines, head.digest)),
                signed_at=at,
            )
        )
    return head


def require_sound(findings: Iterable[Finding]) -> None:
    """Refuse to sign a log in which something was found."""
    first = next(iter(findings), None)
    if first is not None:
        raise IntegrityError(f"A log that does not hold is not signed: {first.what}", fix=first.fix)


def check(connection: Connection, key: SigningKey) -> Iterator[Finding]:
    """Yield every signature of this key that does not hold, and say how much is not signed."""
    signed = _signed(connection, key)
    for row in signed:
        problem = _problem(connection, key, row)
        if problem is not None:
            yield _found(problem, "Restore the database from a backup.")
    try:
        head = load_head(connection)
    except IntegrityError:  # log_verification says so
        return
    unsigned = head.lines - max((r.line for r in signed if isinstance(r.line, int)), default=0)
    if unsigned:
        whole = "" if signed else ", which is all of them"
        yield _found(
            f"The last {unsigned} lines of the log are not signed with this key{whole}.",
            "When they are right, sign them: sluice registry sign --key FILE",
        )


def _signed(connection: Connection, key: SigningKey) -> list[Row[Any]]:
    columns: list[sa.Column[Any]] = [signatures.c.line, signatures.c.digest, signatures.c.signature]
    query = sa.select(*columns).where(signatures.c.key_id == key.key_id)
    return list(connection.execute(query.order_by(signatures.c.line)).all())


def _problem(connection: Connection, key: SigningKey, row: Row[Any]) -> str | None:
    if not key.fits(str(row.signature), "log head", _text(row.line, row.digest)):
        return f"The signature of line {row.line} was not made with this key."
    digest = connection.execute(sa.select(log.c.digest).where(log.c.number == row.line)).scalar()
    if digest != row.digest:
        return f"Line {row.line} of the log is not the one that was signed."
    return None


def _text(line: int, digest: str) -> str:
    return f"{line} {digest}"


def _found(what: str, fix: str) -> Finding:
    return Finding(model="", version=None, problem="signature", what=what, fix=fix)
