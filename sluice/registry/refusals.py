"""Records of rejected attempts to change the registry, with actor and reason.

Rejected attempts are not part of the log. An attempt may come from somebody without the key, and
must not add an unsigned line, because an unsigned line would block signed changes. The number of
stored attempts is limited per day for each kind (action and error class). So a large number of
attempts neither fills the table nor hides attempts of another kind.
"""

from datetime import datetime, timedelta
from typing import Literal

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.errors import escape_unprintable
from sluice.base.settings import Record
from sluice.registry.tables import refusals

AttemptedAction = Literal["register", "import", "promote", "rollback", "approve", "sign", "rollout"]

MAX_ATTEMPTS_PER_DAY = 200
"""Maximum number of stored attempts of one kind within 24 hours. The last attempt that is stored
states this limit in ``refused_because``."""

_MAX_TEXT_CHARS = 2000
"""Maximum length of a stored reason; a longer reason is cut [characters]."""

_MAX_NAME_CHARS = 200
"""Maximum length of a stored model or actor name; a longer name is cut [characters]."""


class RefusedAttempt(Record):
    """A rejected attempt to change the registry."""

    at: datetime
    model: str
    action: AttemptedAction
    from_version: int | None = Field(description="Version that the caller expected in production.")
    to_version: int | None = Field(description="Version that the caller requested.")
    actor: str = Field(description="Name given by the caller; not verified.")
    reason: str
    error: str = Field(description="Class of the error that rejected the attempt.")
    refused_because: str
    key_id: str | None = Field(description="Id of the caller's signing key; None without a key.")


def insert(connection: Connection, refusal: RefusedAttempt) -> None:
    """Store an attempt unless the limit for its kind was reached in the last 24 hours."""
    count_recent = sa.select(sa.func.count()).where(
        refusals.c.at > refusal.at - timedelta(days=1),
        refusals.c.action == refusal.action,
        refusals.c.error == refusal.error,
    )
    count = int(connection.execute(count_recent).scalar_one())
    if count >= MAX_ATTEMPTS_PER_DAY:
        return
    refused_because = _make_storable(refusal.refused_because, _MAX_TEXT_CHARS)
    if count == MAX_ATTEMPTS_PER_DAY - 1:
        refused_because += (
            f" (At most {MAX_ATTEMPTS_PER_DAY} rejected attempts of this kind are recorded within "
            "24 hours.)"
        )
    values = refusal.model_dump() | {
        "model": _make_storable(refusal.model, _MAX_NAME_CHARS),
        "actor": _make_storable(refusal.actor, _MAX_NAME_CHARS),
        "reason": _make_storable(refusal.reason, _MAX_TEXT_CHARS),
        "refused_because": refused_because,
    }
    connection.execute(sa.insert(refusals).values(values))


def load(connection: Connection, *, since: datetime | None) -> list[RefusedAttempt]:
    """Return the rejected attempts since a time, oldest first; all if ``since`` is None."""
    columns = [column for column in refusals.c if column.name != "id"]
    query = sa.select(*columns).order_by(refusals.c.id)
    if since is not None:
        query = query.where(refusals.c.at >= since)
    return [RefusedAttempt(**row._mapping) for row in connection.execute(query)]


def _make_storable(text: str, max_chars: int) -> str:
    """Return a text that every database can store; PostgreSQL rejects NUL characters."""
    return escape_unprintable(text).replace("\0", "\\0")[:max_chars]
