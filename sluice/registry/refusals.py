"""Attempts to change the registry that were refused: who tried what, and why not.

They are kept beside the log, not in it: an attempt may come from somebody without the key, and must
not leave a line that nobody signed. A flood of attempts fills the table at a bounded pace, and
hides none of another kind: the bound is of one action and one class of error.
"""

from datetime import datetime, timedelta
from typing import Literal

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.errors import writable
from sluice.base.settings import Record
from sluice.registry.tables import refusals

Attempt = Literal["register", "import", "promote", "rollback", "approve", "sign", "rollout"]

MAX_A_DAY = 200
"""Attempts of one kind that are kept within 24 hours; the last of them says that no more are."""

_MAX_TEXT = 2000
_MAX_NAME = 200


class Refusal(Record):
    """One attempt that was refused."""

    at: datetime
    model: str
    action: Attempt
    from_version: int | None = Field(description="What the caller expected in production.")
    to_version: int | None = Field(description="What the caller asked for.")
    actor: str = Field(description="The name given; nothing proves it.")
    reason: str
    error: str = Field(description="Class of the error.")
    refused_because: str
    key_id: str | None = Field(description="Of the key in use; None without one.")


def insert(connection: Connection, refusal: Refusal) -> None:
    """Write an attempt down, unless as many of its kind were within 24 hours as are kept."""
    recent = sa.select(sa.func.count()).where(
        refusals.c.at > refusal.at - timedelta(days=1),
        refusals.c.action == refusal.action,
        refusals.c.error == refusal.error,
    )
    count = int(connection.execute(recent).scalar_one())
    if count >= MAX_A_DAY:
        return
    because = _stored(refusal.refused_because, _MAX_TEXT)
    if count == MAX_A_DAY - 1:
        because += " (No more refused attempts of this kind are kept for a day.)"
    values = refusal.model_dump() | {
        "model": _stored(refusal.model, _MAX_NAME),
        "actor": _stored(refusal.actor, _MAX_NAME),
        "reason": _stored(refusal.reason, _MAX_TEXT),
        "refused_because": because,
    }
    connection.execute(sa.insert(refusals).values(values))


def load(connection: Connection, *, since: datetime | None) -> list[Refusal]:
    """Return what was refused from a moment on, oldest first; all of it without one."""
    columns = [column for column in refusals.c if column.name != "id"]
    query = sa.select(*columns).order_by(refusals.c.id)
    if since is not None:
        query = query.where(refusals.c.at >= since)
    return [Refusal(**row._mapping) for row in connection.execute(query)]


def _stored(text: str, length: int) -> str:
    """Return a text that every database stores; PostgreSQL refuses NUL."""
    return writable(text).replace("\0", "\\0")[:length]
