"""One secret for each model: it places users in a rollout, and names them in samples (ROLL-1).

Clients are told the rollout's id. A split that followed from it alone could be computed outside,
and keys chosen that all reach the challenger. Users are named in samples by a keyed digest, so that
nobody who reads a sample can say whose it is, and whoever knows the key of a user can erase theirs.
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
"""Any fixed number: PostgreSQL's advisory lock while a secret is drawn. A server's role may write
notes, and need not write models, whose rows other writers lock."""


class ClientSecret(Record):
    """The secret of one model, as it is kept."""

    value: str = Field(repr=False, min_length=2 * _BYTES, max_length=2 * _BYTES)


def find_secret(connection: Connection, model: str) -> str:
    """Return the secret of a model; "" when no server of it was ever started."""
    query = sa.select(rollout_notes.c.payload).where(
        rollout_notes.c.rollout == _place(model), rollout_notes.c.kind == _KIND
    )
    found = connection.execute(query.order_by(rollout_notes.c.id).limit(1)).scalar()
    return "" if found is None else ClientSecret.model_validate_json(found).value


def insert_secret(connection: Connection, model: str, *, at: datetime) -> None:
    """Draw a secret and keep it, unless another writer was faster."""
    if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if find_secret(connection, model):
        return
    drawn = ClientSecret(value=secrets.token_hex(_BYTES))
    row = {"rollout": _place(model), "kind": _KIND, "at": at, "payload": drawn.model_dump_json()}
    connection.execute(sa.insert(rollout_notes).values(**row))


def client_of(user: str | None, address: str) -> str:
    """Return who a request is from: the user it names, or else the address it came from."""
    return f"user {user}" if user is not None else f"address {address}"


@functools.lru_cache(2**14)
def network_of(address: str) -> str:
    """Return the network of an address: whoever has one often has all of it.

    A /64 of IPv6 is what one subscriber gets, a /24 of IPv4 the least that is routed.

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
    """Return what samples call a client: a digest that only whoever has the secret can make.

    Args:
        client: As ``client_of`` says; for an origin, as ``network_of``.
        secret: Of the model.
    """
    text = client.encode(errors="surrogatepass")
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()[:32]


def _place(model: str) -> str:
    """Notes are kept by rollout; this names no rollout."""
    return digest_json([_KIND, model])
