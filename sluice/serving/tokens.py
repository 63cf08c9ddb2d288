"""Bearer tokens with names and scopes.

A server stores only the digests of its tokens, so its ``Tokens`` object may be sent to other
processes. Digests are compared in constant time.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal, get_args

from sluice.base.errors import SettingsError
from sluice.serving.http_errors import Forbidden, Unauthorized

MIN_TOKEN_CHARACTERS = 16
"""Minimum length of a token [characters]."""

Scope = Literal["predict", "hook", "metrics", "admin"]
"""Permission to use certain routes. predict: /predict and /model; hook: /hooks/rollback; metrics:
/metrics; admin: /rollout and /problems."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
_SCOPES_WITHOUT_HOOK: frozenset[Scope] = frozenset(("predict", "metrics", "admin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permissions of one token."""

    name: str
    """Name of the token, for logs and limits."""

    digest: bytes
    """SHA-256 of the token."""

    scopes: frozenset[Scope]
    requests_per_s: float | None = None
    """Maximum rate of predictions [1/s]; None for an equal share of the server's rate."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a server."""

    grants: tuple[Grant, ...] = ()
    open_scopes: frozenset[Scope] = frozenset()
    """Scopes whose routes require no token."""

    @classmethod
    def of(cls, *, serve: str | None = None, hook: str | None = None) -> "Tokens":
        """Return the tokens of a server that has one token for clients and one for Alertmanager.

        Args:
            serve: Token for all routes except the webhook; None if they require no token.
            hook: Token for the webhook; None for a server without a webhook.

        Raises:
            SettingsError: A token is too short, or contains characters that a header must not have.
        """
        grants = []
        if serve is not None:
            grants.append(
                Grant(name="serve", digest=digest_token(serve), scopes=_SCOPES_WITHOUT_HOOK)
            )
        if hook is not None:
            grants.append(
                Grant(name="hook", digest=digest_token(hook), scopes=frozenset(("hook",)))
            )
        return cls(tuple(grants), _SCOPES_WITHOUT_HOOK if serve is None else frozenset())

    @property
    def predict_grants(self) -> tuple[Grant, ...]:
        """Grants that permit predictions."""
        return tuple(grant for grant in self.grants if "predict" in grant.scopes)

    def has(self, scope: Scope) -> bool:
        """Return whether any client may use the routes of a scope."""
        return scope in self.open_scopes or any(scope in grant.scopes for grant in self.grants)

    def require(self, authorization: str | None, scope: Scope) -> str:
        """Accept a request with a token of this scope, and return the token's name.

        The name is "" if the scope requires no token.

        Args:
            authorization: Value of the Authorization header.
            scope: Scope of the route.

        Raises:
            Unauthorized: The header is missing, has another scheme, or has an unknown token.
            Forbidden: The token is known, but lacks this scope.
        """
        if scope in self.open_scopes:
            return ""
        scheme, _, secret = (authorization or "").partition(" ")
        digest = _digest(secret)
        matching_grant = None
        for grant in self.grants:  # no early exit, so that the duration reveals no other token
            if hmac.compare_digest(grant.digest, digest):
                matching_grant = grant
        if matching_grant is None or scheme.lower() != "bearer":
            problem = "has none" if scheme.lower() != "bearer" else "has an unknown token"
            raise Unauthorized(
                f"The request requires a valid bearer token, but {problem}.",
                fix="Send the header 'Authorization: Bearer TOKEN' with a token of the server.",
            )
        if scope not in matching_grant.scopes:
            raise Forbidden(
                f"This route requires a token with the scope '{scope}', but the token of the "
                f"request has {', '.join(sorted(matching_grant.scopes))}.",
                fix=f"Ask the operator of the server for a token with the scope '{scope}'.",
            )
        return matching_grant.name


def digest_token(secret: str) -> bytes:
    """Return the SHA-256 of a token.

    Raises:
        SettingsError: The token is too short, or contains characters that a header must not have.
    """
    if len(secret) < MIN_TOKEN_CHARACTERS or not secret.isascii() or not secret.isprintable():
        is_printable_ascii = secret.isascii() and secret.isprintable()
        problem = "" if is_printable_ascii else ", not all of them printable ASCII"
        raise SettingsError(
            f"A token must have at least {MIN_TOKEN_CHARACTERS} printable ASCII characters and no "
            f"others, got {len(secret)} characters{problem}.",
            fix="Create a token: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return _digest(secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
