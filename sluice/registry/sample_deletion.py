"""Deletes client samples: all samples of one user at once, and old samples in small batches.

Samples are the only rows that contain data sent by clients. They are not part of the signed hash
chain, so their deletion does not invalidate it. Counts, verdicts and transitions are kept, because
they aggregate many clients.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.settings import Record
from sluice.registry.client_names import client_of, client_pseudonym
from sluice.registry.model_secret import find_secret
from sluice.registry.tables import samples

_MAX_ROWS_PER_REPORT = 200
"""Maximum number of samples that are checked for expiry at each report of a server. A server sends
about one report per second."""


class ErasureReport(Record):
    """Result of erasing the samples of one user."""

    model: str
    samples: int = Field(description="Number of all deleted samples.")
    drift: int = Field(
        description="Number of deleted samples outside of rollouts, used for drift monitoring only."
    )
    pairs: int = Field(description="Number of deleted samples with predictions of both arms.")
    awaiting_label: int = Field(
        description="Number of deleted pairs that were stored to be joined with a label: the first "
        "pair of each row key. The label may have arrived or not."
    )
    kept: int = Field(description="Number of remaining samples of the model.")
    unnamed: int = Field(
        description="Number of remaining samples whose user is unknown. An older version of Sluice "
        "stored these samples without the user."
    )


def erase_user(connection: Connection, model: str, user: str) -> ErasureReport:
    """Delete all samples of a user in the caller's transaction.

    Args:
        connection: Connection of a write transaction.
        model: Name of the model.
        user: User key, which clients send in the field ``user``.
    """
    if connection.dialect.name == "sqlite":
        # With this setting, SQLite overwrites deleted data instead of keeping it in free pages.
        connection.exec_driver_sql("PRAGMA secure_delete = ON")
    is_of_model = samples.c.model == model
    secret = find_secret(connection, model)
    deleted_rows: Sequence[Any] = ()
    if secret:
        # Only the field "client" can match, because quotes inside JSON strings are escaped. The
        # pseudonym is hexadecimal, so it needs no escaping.
        pseudonym = client_pseudonym(client_of(user, ""), secret=secret)
        is_of_user = samples.c.payload.contains(f'"client":"{pseudonym}"')
        deleted_rows = connection.execute(
            sa.select(samples.c.id, samples.c.rollout, samples.c.row_key, samples.c.payload).where(
                is_of_model, is_of_user
            )
        ).all()
        connection.execute(sa.delete(samples).where(is_of_model, is_of_user))
    rollout_samples = [json.loads(row.payload) for row in deleted_rows if row.rollout is not None]
    count_kept = sa.select(sa.func.count()).select_from(samples).where(is_of_model)
    has_client = samples.c.payload.contains('"client":"')
    return ErasureReport(
        model=model,
        samples=len(deleted_rows),
        drift=sum(row.rollout is None for row in deleted_rows),
        pairs=sum(bool(each["production"] and each["challenger"]) for each in rollout_samples),
        awaiting_label=sum(row.row_key is not None for row in deleted_rows),
        kept=connection.execute(count_kept).scalar_one(),
        unnamed=connection.execute(count_kept.where(sa.not_(has_client))).scalar_one(),
    )


def delete_expired(connection: Connection, model: str, *, before: datetime) -> None:
    """Delete a batch of the samples older than a given time, oldest first.

    Args:
        connection: Connection of a write transaction.
        model: Name of the model.
        before: Samples of this time and later are kept.
    """
    oldest_first = (
        sa.select(samples.c.id, samples.c.payload)
        .where(samples.c.model == model)
        .order_by(samples.c.id)
    )
    oldest_row = connection.execute(oldest_first.limit(1)).first()
    if oldest_row is None or not _is_older(oldest_row.payload, before):
        return
    expired_ids = [
        row.id
        for row in connection.execute(oldest_first.limit(_MAX_ROWS_PER_REPORT))
        if _is_older(row.payload, before)
    ]
    connection.execute(sa.delete(samples).where(samples.c.id.in_(expired_ids)))


def _is_older(payload: str, before: datetime) -> bool:
    return datetime.fromisoformat(json.loads(payload)["at"]) < before
