"""Transactional outbox: each history entry is delivered to each consumer at least once, in order.

An entry is written in the transaction of its change. So no event is lost, and a change whose
transaction fails has no event. A delivery is recorded after it was made. If the process ends in
between, the next publisher repeats the delivery under the same key. Two concurrent publishers may
both deliver an event, but each of them delivers the entries of a model in order. So a consumer that
skips the keys of processed events processes each entry once, in order.
"""

from collections.abc import Callable
from datetime import datetime

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy import Connection

from sluice.base.settings import Record
from sluice.registry.log import find_line_digest
from sluice.registry.queries import parse_entry
from sluice.registry.records import HistoryEvent
from sluice.registry.tables import deliveries, history


class Delivery(Record):
    """Result of delivering one event. A consumer reports a failure in it, without an exception."""

    ok: bool = Field(
        description="Whether the event was delivered. If not, the next call of publish repeats it "
        "before any later event."
    )
    reason: str = Field(description="Result of the delivery in one sentence.")


class Publication(Record):
    """Result of publishing the pending events to one consumer."""

    delivered: int = Field(description="Number of events delivered by this call.")
    waiting: int = Field(description="Number of events that remain pending.")
    reasons: tuple[str, ...] = Field(
        description="Result of each attempted delivery in one sentence, in order."
    )


Deliver = Callable[[HistoryEvent], Delivery]
"""Function of a consumer that delivers one event."""


def pending_events(connection: Connection, model: str, consumer: str) -> list[HistoryEvent]:
    """Return the history entries of a model that a consumer has not received, oldest first."""
    delivered_ids = sa.select(deliveries.c.line).where(deliveries.c.consumer == consumer)
    rows = connection.execute(
        sa.select(history)
        .where(history.c.model == model, history.c.id.not_in(delivered_ids))
        .order_by(history.c.id)
    ).all()
    return [
        HistoryEvent(key=find_line_digest(connection, history, row.id), entry=parse_entry(row))
        for row in rows
    ]


def mark_delivered(
    connection: Connection, event: HistoryEvent, consumer: str, *, at: datetime
) -> None:
    """Record that an event was delivered to a consumer."""
    row = {"consumer": consumer, "line": event.entry.id, "delivered_at": at}
    try:
        with connection.begin_nested():
            connection.execute(sa.insert(deliveries).values(row))
    except sa.exc.IntegrityError:  # another publisher delivered and recorded it first
        return
