"""Secret of each model, for the assignment of users to rollout arms and for their pseudonyms.

Clients know the id of a rollout. If the assignment depended only on this id and the user key, a
client could choose user keys that all reach the challenger. The pseudonym of a user is a digest
that is keyed with the secret. A reader of the samples cannot identify a user, but the operator can
find and delete the samples of a given user.
"""

import secrets
from datetime import datetime

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.digests import digest_json
from sluice.base.settings import Record
from sluice.registry.tables import rollout_notes

_SECRET_BYTES = 32
"""Length of a secret [bytes]."""
_NOTE_KIND = "secret"
_ADVISORY_LOCK = 7_236_019_115
"""Arbitrary fixed number of the PostgreSQL advisory lock that is held while a secret is created.
Other writers lock the row of the model. A server cannot, because its database role may only write
notes."""


class ModelSecret(Record):
    """Stored secret of one model."""

    value: str = Field(repr=False, min_length=2 * _SECRET_BYTES, max_length=2 * _SECRET_BYTES)


def find_secret(connection: Connection, model: str) -> str:
    """Return the secret of a model; "" before the first server of the model was started."""
    query = sa.select(rollout_notes.c.payload).where(
        rollout_notes.c.rollout == _note_id(model), rollout_notes.c.kind == _NOTE_KIND
    )
    payload = connection.execute(query.order_by(rollout_notes.c.id).limit(1)).scalar()
    return "" if payload is None else ModelSecret.model_validate_json(payload).value


def insert_secret(connection: Connection, model: str, *, at: datetime) -> None:
    """Create and store a secret unless the model already has one."""
    if connection.dialect.name == "postgresql":  # SQLite allows only one writer at a time
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    if find_secret(connection, model):
        return
    secret = ModelSecret(value=secrets.token_hex(_SECRET_BYTES))
    row = {
        "rollout": _note_id(model),
        "kind": _NOTE_KIND,
        "at": at,
        "payload": secret.model_dump_json(),
    }
    connection.execute(sa.insert(rollout_notes).values(**row))


def _note_id(model: str) -> str:
    """Return the id under which the secret is stored among the rollout notes.

    The table has this id in its column for the rollout id. It differs from every rollout id.
    """
    return digest_json([_NOTE_KIND, model])
