"""Secret per model that assigns users to rollout arms and pseudonymizes them in samples.

Clients know the id of a rollout. If the assignment depended only on the id, a client could compute
it and choose keys that all reach the challenger. Samples identify users by a keyed digest: a reader
of the samples cannot identify a user, and the samples of a given user can still be erased.
"""

import functools
import hashlib
import hmac
import ipaddress
import secrets
from datetime import datetime

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.digests import digest_json
from sluice.base.settings import Record
from sluice.registry.tables import rollout_notes

_BYTES = 32
_KIND = "secret"
_LOCK = 7_236_019_115
"""Arbitrary fixed number of PostgreSQL's advisory lock while a secret is created. An advisory lock
is used because a server's role may write notes but not models, whose rows other writers lock."""


class ClientSecret(Record):
    """Stored secret of one model."""

    value: str = Field(repr=False, min_length=2 * _BYTES, max_length=2 * _BYTES)


def find_secret(connection: Connection, model: str) -> str:
    """Return the secret of a model; "" if no server of the model was ever started."""
    query = sa.select(rollout_notes.c.payload).where(
        rollout_notes.c.rollout == _secret_key(model), rollout_notes.c.kind == _KIND
    )
    found = connection.execute(query.order_by(rollout_notes.c.id).limit(1)).scalar()
    return "" if found is None else ClientSecret.model_validate_json(found).value


def insert_secret(connection: Connection, model: str, *, at: datetime) -> None:
    """Create and store a secret unless the model already has one."""
    if connection.dialect.name == "postgresql":  # SQLite allows only one writer at a time
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if find_secret(connection, model):
        return
    drawn = ClientSecret(value=secrets.token_hex(_BYTES))
    row = {
        "rollout": _secret_key(model),
        "kind": _KIND,
        "at": at,
        "payload": drawn.model_dump_json(),
    }
    connection.execute(sa.insert(rollout_notes).values(**row))


def client_of(user: str | None, address: str) -> str:
    """Return the client of a request: its user key, or its address if it has none."""
    return f"user {user}" if user is not None else f"address {address}"


@functools.lru_cache(2**14)
def network_of(address: str) -> str:
    """Return the network of an address, because one client often controls a whole network.

    IPv6 subscribers usually get a /64; the smallest routed IPv4 network is a /24.

    >>> network_of("2001:db8::7"), network_of("192.0.2.7")
    ('2001:db8::/64', '192.0.2.0/24')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a socket without addresses
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    found = mapped or found
    prefix = 24 if found.version == 4 else 64
    return str(ipaddress.ip_network((int(found), prefix), strict=False))


def client_name(client: str, *, secret: str) -> str:
    """Return the pseudonym of a client in samples: a digest keyed with the model's secret.

    Args:
        client: Client from ``client_of``, or network from ``network_of``.
        secret: Secret of the model.
    """
    text = client.encode(errors="surrogatepass")
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()[:32]


def _secret_key(model: str) -> str:
    """Return the key of the secret among the rollout notes; it is not the id of a rollout."""
    return digest_json([_KIND, model])
