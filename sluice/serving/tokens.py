"""Bearer tokens with names and scopes, compared in constant time.

A server keeps only digests of its tokens, so they can be sent to other processes.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal, get_args

from sluice.base.errors import SettingsError
from sluice.serving.http_errors import Forbidden, Unauthorized

MIN_TOKEN_CHARACTERS = 16

Scope = Literal["predict", "hook", "metrics", "admin"]
"""predict: /predict and /model; hook: /hooks/rollback; metrics: /metrics; admin: /rollout and
/problems."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
_WITHOUT_HOOK: frozenset[Scope] = frozenset(("predict", "metrics", "admin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permissions of one token."""

    name: str
    """Name for logs and shares; empty for clients of a server without tokens."""

    digest: bytes
    """SHA-256 of the token."""

    scopes: frozenset[Scope]
    requests_per_s: float | None = None
    """Rate of predictions [1/s]; None for an equal share of the server's rate."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a server."""

    grants: tuple[Grant, ...] = ()
    open_scopes: frozenset[Scope] = frozenset()
    """Scopes that need no token."""

    @classmethod
    def of(cls, *, serve: str | None = None, hook: str | None = None) -> "Tokens":
        """Return the tokens of a server with one for clients and one for Alertmanager.

        Args:
            serve: Secret for everything but the webhook; None requires no token.
            hook: Secret for the webhook; None for a server without one.

        Raises:
            SettingsError: A secret is too short, or contains characters that a header cannot.
        """
        grants = []
        if serve is not None:
            grants.append(Grant(name="serve", digest=digest_token(serve), scopes=_WITHOUT_HOOK))
        if hook is not None:
            grants.append(
                Grant(name="hook", digest=digest_token(hook), scopes=frozenset(("hook",)))
            )
        return cls(tuple(grants), _WITHOUT_HOOK if serve is None else frozenset())

    @property
    def clients(self) -> tuple[Grant, ...]:
        """Grants that permit predictions."""
        return tuple(grant for grant in self.grants if "predict" in grant.scopes)

    def has(self, scope: Scope) -> bool:
        """Return whether anyone has this scope."""
        return scope in self.open_scopes or any(scope in grant.scopes for grant in self.grants)

    def require(self, authorization: str | None, scope: Scope) -> str:
        """Accept a request with a token of this scope, and return the token's name.

        Args:
            authorization: Value of the Authorization header.
            scope: Scope of the route.

        Raises:
            Unauthorized: The token is missing, has another scheme, or is unknown.
            Forbidden: The token is known, but lacks this scope.
        """
        if scope in self.open_scopes:
            return ""
        scheme, _, secret = (authorization or "").partition(" ")
        digest = _digest(secret)
        found = None
        for grant in self.grants:  # all of them, so that the time reveals nothing
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        if found is None or scheme.lower() != "bearer":
            raise Unauthorized(
                "The request needs a valid bearer token, "
                + ("but has none." if not authorization else "but has an unknown one."),
                fix="Send the header 'Authorization: Bearer TOKEN' with the server's token.",
            )
        if scope not in found.scopes:
            raise Forbidden(
                f"This route needs a token with the scope '{scope}', but this one has "
                f"{', '.join(sorted(found.scopes))}.",
                fix="Ask the operator of the server for a token with that scope.",
            )
        return found.name


def digest_token(secret: str) -> bytes:
    """Return the SHA-256 of a token.

    Raises:
        SettingsError: The token is too short, or contains characters that a header cannot.
    """
    if len(secret) < MIN_TOKEN_CHARACTERS or not secret.isascii() or not secret.isprintable():
        raise SettingsError(
            f"A token must have at least {MIN_TOKEN_CHARACTERS} printable ASCII characters, "
            f"got {len(secret)} characters.",
            fix="Create one: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return _digest(secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
