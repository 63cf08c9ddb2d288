"""Samples of clients that go: those of one user, at once, and old ones, a few at a time.

Samples are the only rows that hold what a client sent. Counts, verdicts and transitions are sums
over many clients, stay, and have their lines in the log; so nothing that is chained or signed
changes when samples go.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.settings import Record
from sluice.registry.client_secret import client_name, client_of, find_secret
from sluice.registry.tables import samples

_PACE = 200
"""Samples that one report looks through for old ones: it is written every second [rows]."""


class Erased(Record):
    """What became of the samples of one user."""

    model: str
    samples: int = Field(description="Deleted samples, those below included.")
    drift: int = Field(description="Of them, those that drift alone was judged by.")
    pairs: int = Field(description="Of them, those that both arms of a rollout answered.")
    labelled: int = Field(description="Of the pairs, those that waited for the label of their row.")
    kept: int = Field(description="Samples of the model that stay.")
    unnamed: int = Field(
        description="Of those that stay, samples that an older Sluice kept without their client."
    )


def erase_user(connection: Connection, model: str, user: str) -> Erased:
    """Delete every sample of a user in the caller's transaction.

    Args:
        connection: That writes.
        model: Its name.
        user: Key that the requests named as ``user``.
    """
    if connection.dialect.name == "sqlite":  # or the bytes would stay in free pages of the file
        connection.exec_driver_sql("PRAGMA secure_delete = ON")
    of_model = samples.c.model == model
    secret = find_secret(connection, model)
    found: Sequence[Any] = ()
    if secret:
        # The name is hexadecimal, and quotes within a text are escaped: only a client matches.
        name = client_name(client_of(user, ""), secret=secret)
        theirs = samples.c.payload.contains(f'"client":"{name}"')
        found = connection.execute(
            sa.select(samples.c.id, samples.c.rollout, samples.c.row_key, samples.c.payload).where(
                of_model, theirs
            )
        ).all()
        connection.execute(sa.delete(samples).where(of_model, theirs))
    pairs = [json.loads(row.payload) for row in found if row.rollout is not None]
    stay = sa.select(sa.func.count()).select_from(samples).where(of_model)
    has_client = samples.c.payload.contains('"client":"')
    return Erased(
        model=model,
        samples=len(found),
        drift=sum(row.rollout is None for row in found),
        pairs=sum(bool(pair["production"] and pair["challenger"]) for pair in pairs),
        labelled=sum(row.row_key is not None for row in found),
        kept=connection.execute(stay).scalar_one(),
        unnamed=connection.execute(stay.where(sa.not_(has_client))).scalar_one(),
    )


def expire(connection: Connection, model: str, *, before: datetime) -> None:
    """Delete some of the samples that are older than a moment, the oldest first.

    Args:
        connection: That writes.
        model: Its name.
        before: Samples of that moment and later stay.
    """
    oldest = (
        sa.select(samples.c.id, samples.c.payload)
        .where(samples.c.model == model)
        .order_by(samples.c.id)
    )
    first = connection.execute(oldest.limit(1)).first()
    if first is None or not _is_older(first.payload, before):
        return
    gone = [
        row.id for row in connection.execute(oldest.limit(_PACE)) if _is_older(row.payload, before)
    ]
    connection.execute(sa.delete(samples).where(samples.c.id.in_(gone)))


def _is_older(payload: str, before: datetime) -> bool:
    return datetime.fromisoformat(json.loads(payload)["at"]) < before
