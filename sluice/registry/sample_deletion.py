"""Deletes client samples: all samples of one user at once, and old samples in small batches.

Samples are the only rows with data sent by clients. Counts, verdicts and transitions are aggregates
over many clients and are kept, so deleting samples changes nothing that is chained or signed.
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

_MAX_ROWS_PER_PASS = 200
"""Maximum number of samples that one report checks for expiry; a server reports every second
[rows]."""


class ErasureReport(Record):
    """Result of erasing the samples of one user."""

    model: str
    samples: int = Field(description="Number of deleted samples, including the ones below.")
    drift: int = Field(description="Number of deleted samples used only for drift monitoring.")
    pairs: int = Field(description="Number of deleted samples with predictions of both arms.")
    labelled: int = Field(description="Number of deleted pairs that waited for a label.")
    kept: int = Field(description="Number of remaining samples of the model.")
    unnamed: int = Field(
        description="Number of remaining samples without a client, stored by an older Sluice."
    )


def erase_user(connection: Connection, model: str, user: str) -> ErasureReport:
    """Delete all samples of a user in the caller's transaction.

    Args:
        connection: Connection of a write transaction.
        model: Name of the model.
        user: User key, the field ``user`` of the requests.
    """
    if connection.dialect.name == "sqlite":  # otherwise the data remains in free pages of the file
        connection.exec_driver_sql("PRAGMA secure_delete = ON")
    of_model = samples.c.model == model
    secret = find_secret(connection, model)
    found: Sequence[Any] = ()
    if secret:
        # The pseudonym is hexadecimal and quotes inside a string are escaped, so only the client
        # field matches.
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
    return ErasureReport(
        model=model,
        samples=len(found),
        drift=sum(row.rollout is None for row in found),
        pairs=sum(bool(pair["production"] and pair["challenger"]) for pair in pairs),
        labelled=sum(row.row_key is not None for row in found),
        kept=connection.execute(stay).scalar_one(),
        unnamed=connection.execute(stay.where(sa.not_(has_client))).scalar_one(),
    )


def delete_expired(connection: Connection, model: str, *, before: datetime) -> None:
    """Delete a batch of the samples older than a given time, oldest first.

    Args:
        connection: Connection of a write transaction.
        model: Name of the model.
        before: Samples of that time and later are kept.
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
        row.id
        for row in connection.execute(oldest.limit(_MAX_ROWS_PER_PASS))
        if _is_older(row.payload, before)
    ]
    connection.execute(sa.delete(samples).where(samples.c.id.in_(gone)))


def _is_older(payload: str, before: datetime) -> bool:
    return datetime.fromisoformat(json.loads(payload)["at"]) < before
