"""Who may ask for what: tokens with names and scopes, compared in constant time.

A server keeps digests only, so that what it holds may travel to other processes and lets nobody in.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal, get_args

from sluice.base.errors import SettingsError
from sluice.serving.refusals import NotAllowed, NotAuthorized

MIN_TOKEN_CHARACTERS = 16

Scope = Literal["predict", "hook", "metrics", "admin"]
"""predict: /predict and /model; hook: /hooks/rollback; metrics: /metrics; admin: /rollout and
/problems."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
_WITHOUT_HOOK: frozenset[Scope] = frozenset(("predict", "metrics", "admin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the holder of one token may do."""

    name: str
    """For logs and shares; "" for clients of a server that asks for no token."""

    digest: bytes
    """SHA-256 of the token."""

    scopes: frozenset[Scope]
    requests_per_s: float | None = None
    """Predictions [1/s]; None for an equal share of the server's rate."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a server."""

    grants: tuple[Grant, ...] = ()
    open_scopes: frozenset[Scope] = frozenset()
    """What needs no token."""

    @classmethod
    def of(cls, *, serve: str | None = None, hook: str | None = None) -> "Tokens":
        """Return the tokens of a server that has one for clients and one for Alertmanager.

        Args:
            serve: Secret for everything but the hook; None lets everybody in.
            hook: Secret for the hook; None for a server without one.

        Raises:
            SettingsError: One is too short, or holds what a header cannot.
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
        """Grants that may ask for predictions."""
        return tuple(grant for grant in self.grants if "predict" in grant.scopes)

    def has(self, scope: Scope) -> bool:
        """Say whether anybody may do this."""
        return scope in self.open_scopes or any(scope in grant.scopes for grant in self.grants)

    def require(self, authorization: str | None, scope: Scope) -> str:
        """Let a request pass that shows a token of this scope, and return the token's name.

        Args:
            authorization: The header of that name.
            scope: What the route needs.

        Raises:
            NotAuthorized: The token is missing, of another scheme, or unknown.
            NotAllowed: It is known, and has not this scope.
        """
        if scope in self.open_scopes:
            return ""
        scheme, _, shown = (authorization or "").partition(" ")
        digest = _digest(shown)
        found = None
        for grant in self.grants:  # all of them: the time tells nothing about which one is near
            if hmac.compare_digest(grant.digest, digest):
                found = grant
        if found is None or scheme.lower() != "bearer":
            raise NotAuthorized(
                "A request must show the bearer token, "
                + (
                    "and this one shows none."
                    if not authorization
                    else "and this one shows another."
                ),
                fix="Send the header 'Authorization: Bearer TOKEN' with the server's token.",
            )
        if scope not in found.scopes:
            raise NotAllowed(
                f"This route needs a token with the scope '{scope}', and this one has "
                f"{', '.join(sorted(found.scopes))}.",
                fix="Ask whoever runs the server for a token with that scope.",
            )
        return found.name


def digest_token(secret: str) -> bytes:
    """Return the SHA-256 of a token.

    Raises:
        SettingsError: It is too short to be one, or holds what a header cannot.
    """
    if len(secret) < MIN_TOKEN_CHARACTERS or not secret.isascii() or not secret.isprintable():
        raise SettingsError(
            f"A token must have at least {MIN_TOKEN_CHARACTERS} printable ASCII characters, "
            f"got {len(secret)} characters.",
            fix="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return _digest(secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()
