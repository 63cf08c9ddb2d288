"""Outbox: history entries are delivered in order, at least once, each with one key (REG-2)."""

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.ledger import Ledger
from sluice.registry.outbox import Delivery
from sluice.registry.records import HistoryEvent
from tests.sluice.registry.ledger_samples import (
    MODEL,
    promote_chain,
    register_sample,
    sample_lineage,
)


class Consumer:
    """Consumer that rejects an event (``fails_at``) or crashes after receiving it (``dies_at``)."""

    def __init__(self) -> None:
        self.received: list[HistoryEvent] = []
        self.fails_at: str | None = None
        self.dies_at: str | None = None

    def __call__(self, event: HistoryEvent) -> Delivery:
        if event.entry.action == self.fails_at:
            return Delivery(ok=False, reason="out of order")
        self.received.append(event)
        if event.entry.action == self.dies_at:
            raise KeyboardInterrupt  # delivered, but not recorded
        return Delivery(ok=True, reason=event.entry.action)

    @property
    def actions(self) -> list[str]:
        return [event.entry.action for event in self.received]


def test_history_entries_are_delivered_once_in_order(ledger: Ledger, store: ArtifactStore) -> None:
    promote_chain(ledger, store, 2)
    consumer = Consumer()

    first = ledger.publish(MODEL, "board", consumer)
    ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
    second = ledger.publish(MODEL, "board", consumer)
    third = ledger.publish(MODEL, "board", consumer)

    steps = ["register", "stage", "promote"]
    assert consumer.actions == [*steps, *steps, "rollback"]
    assert [e.entry for e in consumer.received] == ledger.history(MODEL)
    assert [(p.delivered, p.waiting) for p in (first, second, third)] == [(6, 0), (1, 0), (0, 0)]
    assert len({event.key for event in consumer.received}) == 7
    assert first.reasons == (*steps, *steps)


def test_failing_consumer_does_not_block_other_consumers_and_models(
    ledger: Ledger, store: ArtifactStore
) -> None:
    register_sample(ledger, store, salt=1)
    ledger.register("other", sample_lineage(store, model="other"), [])
    failing, working, other = Consumer(), Consumer(), Consumer()
    failing.fails_at = "register"

    ledger.publish(MODEL, "broken", failing)
    ledger.publish("other", "broken", other)
    ledger.publish(MODEL, "sound", working)

    assert (failing.actions, other.actions) == ([], ["register"])
    assert working.actions == ["register", "stage"]
    assert ledger.publish("nothing", "sound", working).delivered == 0


def test_failed_delivery_blocks_later_events(ledger: Ledger, store: ArtifactStore) -> None:
    promote_chain(ledger, store, 1)
    consumer = Consumer()
    consumer.fails_at = "stage"

    blocked = ledger.publish(MODEL, "board", consumer)
    assert (blocked.delivered, blocked.waiting, blocked.reasons) == (
        1,
        2,
        ("register", "out of order"),
    )

    consumer.fails_at = None
    retried = ledger.publish(MODEL, "board", consumer)

    assert (retried.delivered, retried.waiting) == (2, 0)
    assert consumer.actions == ["register", "stage", "promote"]


def test_delivery_is_repeated_with_the_same_key_after_a_crash(
    ledger: Ledger, store: ArtifactStore
) -> None:
    promote_chain(ledger, store, 1)
    consumer = Consumer()
    consumer.dies_at = "stage"
    with pytest.raises(KeyboardInterrupt):
        ledger.publish(MODEL, "board", consumer)

    consumer.dies_at = None
    ledger.publish(MODEL, "board", consumer)

    assert consumer.actions == ["register", "stage", "stage", "promote"]
    assert consumer.received[1] == consumer.received[2]


def test_concurrent_publishers_lose_no_event(ledger: Ledger, store: ArtifactStore) -> None:
    """The second publisher delivers everything while the first is at its first event."""
    promote_chain(ledger, store, 1)
    inner, outer = Consumer(), Consumer()

    def slow(event: HistoryEvent) -> Delivery:
        if not inner.received:
            ledger.publish(MODEL, "board", inner)
        return outer(event)

    published = ledger.publish(MODEL, "board", slow)

    assert published.delivered == 3
    assert inner.received == outer.received
    assert ledger.publish(MODEL, "board", outer).delivered == 0
    assert ledger.verify(None, store=store) == []
