"""Stable indices for the traced program's objects. An entry does not keep its object alive."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class IndexEntry(Protocol):
    """Data about one object of the program."""

    index: int
    ref: "weakref.ref[Any]"


E = TypeVar("E", bound=IndexEntry)


class ObjectIndex(Generic[E]):
    """One entry for each object, found by identity.

    Args:
        create_entry: Returns the entry of a new object, given its index and the object.
    """

    def __init__(self, create_entry: Callable[[int, Any], E]) -> None:
        self._create_entry = create_entry
        self.by_id: dict[int, E] = {}
        """Entries by the ``id`` of their object. Python reuses the ids of deleted objects, so hot
        paths that read this dict directly must check the identity, as ``get`` does."""
        self._next_index = 0
        """Index of the next entry."""
        self.entries: tuple[E, ...] = ()
        """All entries, including entries of recently deleted objects. A tuple, because the entries
        are read at every step."""

    def get(self, obj: object) -> E | None:
        """Return the entry of an object; None if no entry exists."""
        entry = self.by_id.get(id(obj))
        # Python reuses the address of a deleted object.
        return entry if entry is not None and entry.ref() is obj else None

    def get_or_add(self, obj: object) -> E:
        """Return the entry of an object; create the entry if it does not exist."""
        entry = self.by_id.get(id(obj))
        if entry is not None and entry.ref() is obj:
            return entry
        entry = self._create_entry(self._next_index, obj)
        self._next_index += 1
        self.by_id[id(obj)] = entry
        self.entries = tuple(self.by_id.values())
        return entry

    def live_items(self) -> Iterator[tuple[E, Any]]:
        """Yield every entry with its object, and remove the entries of deleted objects."""
        for object_id, entry in list(self.by_id.items()):
            obj = entry.ref()
            if obj is None:
                del self.by_id[object_id]
                self.entries = tuple(self.by_id.values())
            else:
                yield entry, obj
