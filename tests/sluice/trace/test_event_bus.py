"""Parts of the tracer receive typed events in the order in which they subscribed."""

from dataclasses import dataclass

from sluice.trace.event_bus import EventBus


@dataclass
class Opened:
    number: int


@dataclass
class Closed:
    number: int


def test_subscribers_of_a_type_are_called_in_the_order_of_their_subscription():
    bus, calls = EventBus(), []
    bus.subscribe(Opened, lambda event: calls.append(("first", event.number)))
    bus.subscribe(Closed, lambda event: calls.append(("closed", event.number)))
    bus.subscribe(Opened, lambda event: calls.append(("second", event.number)))

    bus.publish(Opened(3))

    assert calls == [("first", 3), ("second", 3)]


def test_an_event_without_subscribers_is_ignored():
    bus = EventBus()
    bus.publish(Opened(1))

    assert not bus.has_subscribers(Opened)


def test_a_subscriber_may_unsubscribe_while_it_is_called():
    bus, calls = EventBus(), []

    def once(event):
        calls.append(event.number)
        bus.unsubscribe(Opened, once)

    bus.subscribe(Opened, once)
    bus.subscribe(Opened, lambda event: calls.append(-event.number))
    bus.publish(Opened(1))
    bus.publish(Opened(2))

    assert calls == [1, -1, -2]
    bus.unsubscribe(Opened, once)  # no subscriber any more


def test_bound_methods_can_be_unsubscribed():
    class Counter:
        def __init__(self):
            self.opened = 0

        def on_opened(self, event):
            self.opened += event.number

    bus, first, second = EventBus(), Counter(), Counter()
    bus.subscribe(Opened, first.on_opened)
    bus.subscribe(Opened, second.on_opened)
    bus.unsubscribe(Opened, first.on_opened)
    bus.publish(Opened(2))

    assert (first.opened, second.opened) == (0, 2)
    assert bus.has_subscribers(Opened)
