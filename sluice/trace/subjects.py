"""Indices of the program's own objects: they live as long as the object does, and hold it not."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class Entry(Protocol):
    """What is kept of one object."""

    index: int
    ref: "weakref.ref[Any]"


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """One entry for each object, found by identity.

    Args:
        make: Returns the entry of an object that is new, given its index.
    """

    def __init__(self, make: Callable[[int, Any], E]) -> None:
        self._make = make
        self.by_id: dict[int, E] = {}
        """By the identity of its object, which may be another one by now; for those in a hurry."""
        self._next = 0
        self.entries: tuple[E, ...] = ()
        """Every entry, also those of objects that died a moment ago; asked for at every step."""

    def known(self, subject: object) -> E | None:
        """Return the entry of an object that has one."""
        entry = self.by_id.get(id(subject))
        # The address of a dead object is given to a new one.
        return entry if entry is not None and entry.ref() is subject else None

    def find(self, subject: object) -> E:
        """Return the entry of an object, a new one if need be."""
        entry = self.by_id.get(id(subject))
        if entry is not None and entry.ref() is subject:
            return entry
        entry = self._make(self._next, subject)
        self._next += 1
        self.by_id[id(subject)] = entry
        self.entries = tuple(self.by_id.values())
        return entry

    def alive(self) -> Iterator[tuple[E, Any]]:
        """Yield every entry with its object; those of dead objects are forgotten."""
        for key, entry in list(self.by_id.items()):
            subject = entry.ref()
            if subject is None:
                del self.by_id[key]
                self.entries = tuple(self.by_id.values())
            else:
                yield entry, subject
