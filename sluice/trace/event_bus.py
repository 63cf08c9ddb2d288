"""Passes the typed events that hooks publish to the parts of the tracer that subscribe to them."""

from collections.abc import Callable
from typing import Any, TypeVar

EventT = TypeVar("EventT")


class EventBus:
    """Calls the subscribers to each type of event, in the order in which they subscribed."""

    def __init__(self) -> None:
        self._subscribers: dict[type, tuple[Callable[[Any], None], ...]] = {}

    def subscribe(self, event_type: type[EventT], on_event: Callable[[EventT], None]) -> None:
        """Call a function with every event of a type."""
        self._subscribers[event_type] = (*self._subscribers.get(event_type, ()), on_event)

    def unsubscribe(self, event_type: type[EventT], on_event: Callable[[EventT], None]) -> None:
        """Stop calling a function; do nothing if it is not subscribed."""
        self._subscribers[event_type] = tuple(
            subscriber
            for subscriber in self._subscribers.get(event_type, ())
            if subscriber != on_event
        )

    def has_subscribers(self, event_type: type) -> bool:
        """Return whether any function subscribes to events of a type."""
        return bool(self._subscribers.get(event_type))

    def publish(self, event: object) -> None:
        """Call the subscribers to events of this type."""
        for on_event in self._subscribers.get(type(event), ()):
            on_event(event)
