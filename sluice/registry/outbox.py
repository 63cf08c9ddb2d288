"""The history as an outbox: each line is an event, told to each consumer at least once, in order.

A line is written in the transaction that moves the pointer, so an event cannot be lost, nor told
of a move that was undone. What was told is noted afterwards: whoever dies in between tells it
again, under the same key. Two publishers at once may also both tell it; each tells the lines of a
model in their order, so a consumer that passes over keys it knows sees them in order.
"""

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.settings import Record
from sluice.registry.log import find_digest
from sluice.registry.queries import parse_entry
from sluice.registry.records import Event
from sluice.registry.tables import deliveries, history


class Delivery(Record):
    """What a consumer says of one event; it answers, it does not raise."""

    ok: bool = Field(description="False: tell it again next time, and nothing later before it.")
    reason: str = Field(description="One sentence for people.")


class Publication(Record):
    """What became of everything that waited for one consumer."""

    delivered: int = Field(description="Events told now.")
    waiting: int = Field(description="Events that stay for the next time.")
    reasons: tuple[str, ...] = Field(description="What the consumer said, in the order told.")


Deliver = Callable[[Event], Delivery]


def pending(connection: Connection, model: str, consumer: str) -> list[Event]:
    """Return the lines of a model's history that the consumer has not been told, oldest first."""
    told = sa.select(deliveries.c.line).where(deliveries.c.consumer == consumer)
    rows = connection.execute(
        sa.select(history)
        .where(history.c.model == model, history.c.id.not_in(told))
        .order_by(history.c.id)
    ).all()
    return [
        Event(key=find_digest(connection, history, row.id), entry=parse_entry(row)) for row in rows
    ]


def mark_delivered(connection: Connection, event: Event, consumer: str, *, at: datetime) -> None:
    """Note that a consumer was told."""
    row = {"consumer": consumer, "line": event.entry.id, "delivered_at": at}
    try:
        with connection.begin_nested():
            connection.execute(sa.insert(deliveries).values(row))
    except sa.exc.IntegrityError:  # another publisher told it as well, and noted it first
        return
