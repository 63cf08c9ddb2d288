"""Who may ask, and how often."""

import hashlib
import hmac
from pathlib import Path

from sluice.errors import SettingsError, StorageError
from sluice.serving.refusals import NotAuthorized, TooMany

MIN_TOKEN_CHARACTERS = 16


class Token:
    """The secret that a client must show; compared in constant time."""

    def __init__(self, secret: str) -> None:
        """Keep a digest of the secret.

        Raises:
            SettingsError: It is too short to be one, or holds what a header cannot.
        """
        if len(secret) < MIN_TOKEN_CHARACTERS or not secret.isascii() or not secret.isprintable():
            raise SettingsError(
                f"A token must have at least {MIN_TOKEN_CHARACTERS} printable ASCII characters, "
                f"got {len(secret)} characters.",
                fix="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )
        self._digest = _digest(secret)

    @classmethod
    def read(cls, path: Path) -> "Token":
        """Read the secret from a file; white space around it does not count.

        Raises:
            StorageError: The file cannot be read.
            SettingsError: What it holds is no token.
        """
        try:
            return cls(path.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(
                f"The token file {path} cannot be read ({error}).",
                fix="Name a file that this user can read and that holds the token alone.",
            ) from None

    def require(self, authorization: str | None) -> None:
        """Let a request pass that shows the token.

        Args:
            authorization: The header of that name.

        Raises:
            NotAuthorized: It is missing, of another scheme, or wrong.
        """
        scheme, _, shown = (authorization or "").partition(" ")
        # Digests have one length: the time tells nothing about the secret's.
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(shown), self._digest):
            return
        raise NotAuthorized(
            "A request must show the bearer token, "
            + ("and this one shows none." if not authorization else "and this one shows another."),
            fix="Send the header 'Authorization: Bearer TOKEN' with the server's token.",
        )


class RateLimit:
    """A bucket of requests that fills at a steady rate; touched by the event loop only."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._left = float(burst)
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Take one request out; False when the bucket is empty.

        Args:
            now: The moment [s, monotonic].
        """
        if self._at is not None:
            self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def require(self, now: float) -> None:
        """Take one request out.

        Args:
            now: The moment [s, monotonic].

        Raises:
            TooMany: The bucket is empty.
        """
        if not self.take(now):
            raise TooMany(
                f"At most {self._per_s:g} requests a second are answered, with {self._burst:g} at "
                "once, and more came.",
                fix="Wait a second and send fewer; several windows fit into one request.",
            )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
