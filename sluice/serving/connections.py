"""The open connections of a server: their limits, and which connection a new one replaces.

A connection is in one of three states:

    waiting     sends nothing or a header, is idle between two requests, or its client does not
                read the response
    sending     the header is complete, the body is not
    complete    the request is complete, the response is not, and the client reads

If a new connection would exceed a limit, the connection that has been waiting longest is closed;
if no connection waits, the connection that has been sending longest. Silent or slow connections
thus cannot lock out other clients. A client that sends its request without pauses is waiting and
sending only for a short time. A connection in the complete state is never closed for a new
connection.
"""

import itertools
import resource
from collections import Counter
from pathlib import Path
from typing import Protocol

from sluice.base.errors import SettingsError
from sluice.serving.connection_settings import ConnectionSettings
from sluice.serving.metrics import CloseReason, Metrics

MIN_CONNECTIONS = 8
"""Minimum of the limit of open connections. A server does not start if its file descriptors suffice
only for fewer connections."""


class Connection(Protocol):
    """Interface of a connection, as the table uses it."""

    address: str
    """Client address, from ``address_for_limits``."""

    def evict(self) -> None:
        """Close immediately."""
        ...


class ConnectionTable:
    """All open connections of a server; used by its event loop only."""

    def __init__(self, *, limit: int, settings: ConnectionSettings, metrics: Metrics) -> None:
        """Create an empty table.

        Args:
            limit: Maximum number of connections, from ``raise_descriptor_limit``.
            settings: Limits of each connection and of each address.
            metrics: Counts open and closed connections.
        """
        self.settings = settings
        self._limit = limit
        self._metrics = metrics
        self._open_connections: set[Connection] = set()
        self._num_by_address: Counter[str] = Counter()
        # Insertion order: the first connection has been in its state longest.
        self._waiting_connections: dict[Connection, None] = {}
        self._sending_connections: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open_connections)

    def make_room(self, address: str) -> bool:
        """Return whether a connection from ``address`` may be added.

        At a limit, another connection is closed for the new connection if possible.
        """
        if self._num_by_address[address] >= self.settings.max_per_address and not self._evict(
            address
        ):
            return False
        return len(self._open_connections) < self._limit or self._evict(None)

    def add(self, connection: Connection) -> None:
        """Add a connection in waiting state."""
        self._open_connections.add(connection)
        self._num_by_address[connection.address] += 1
        self._waiting_connections[connection] = None
        self._metrics.connections.set(len(self._open_connections))

    def remove(self, connection: Connection) -> None:
        """Remove a connection; a second call does nothing."""
        if connection not in self._open_connections:
            return
        self._open_connections.remove(connection)
        self._waiting_connections.pop(connection, None)
        self._sending_connections.pop(connection, None)
        self._num_by_address[connection.address] -= 1
        if not self._num_by_address[connection.address]:
            del self._num_by_address[connection.address]
        self._metrics.connections.set(len(self._open_connections))

    def mark_waiting(self, connection: Connection) -> None:
        """Record that a connection has no request in progress, or does not read its response."""
        if connection in self._open_connections:
            self._sending_connections.pop(connection, None)
            self._waiting_connections.setdefault(connection)

    def mark_sending(self, connection: Connection) -> None:
        """Record that the header of a request is complete."""
        if connection in self._open_connections:
            self._waiting_connections.pop(connection, None)
            self._sending_connections.setdefault(connection)

    def mark_complete(self, connection: Connection) -> None:
        """Record that a request is complete, but not its response."""
        self._waiting_connections.pop(connection, None)
        self._sending_connections.pop(connection, None)

    def count_closed(self, reason: CloseReason) -> None:
        """Count a connection that the server closed or refused to accept."""
        self._metrics.connections_closed[reason].inc()

    def _evict(self, address: str | None) -> bool:
        """Close the connection that has waited or sent longest; return False without one.

        If ``address`` is given, only a connection from this address is closed.
        """
        for connection in itertools.chain(self._waiting_connections, self._sending_connections):
            if address is None or connection.address == address:
                self.remove(connection)
                connection.evict()
                self.count_closed("evicted")
                return True
        return False


def raise_descriptor_limit(settings: ConnectionSettings) -> int:
    """Raise the soft limit of file descriptors as far as needed, and return the connection limit.

    The returned limit is the maximum number of open connections. The descriptors that are already
    open and ``reserved_descriptors`` are not used for connections, so that clients cannot use up
    the descriptors of the registry.

    Raises:
        SettingsError: The hard limit allows fewer than ``MIN_CONNECTIONS`` connections.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = _count_open_descriptors()
    num_unavailable = num_open + settings.reserved_descriptors
    required_limit = settings.max_connections + num_unavailable
    if soft_limit != resource.RLIM_INFINITY and soft_limit < required_limit:
        is_unlimited = hard_limit == resource.RLIM_INFINITY
        soft_limit = required_limit if is_unlimited else min(required_limit, hard_limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))
    max_connections = settings.max_connections
    if soft_limit != resource.RLIM_INFINITY:
        max_connections = min(max_connections, soft_limit - num_unavailable)
    if max_connections < MIN_CONNECTIONS:
        raise SettingsError(
            f"A server needs file descriptors for {MIN_CONNECTIONS} connections in addition to "
            f"{settings.reserved_descriptors} reserved and {num_open} open descriptors, but the "
            f"system grants {soft_limit} in total.",
            fix="Raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd), or lower "
            "serving.connections.reserved_descriptors.",
        )
    return max_connections


def _count_open_descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if Path(folder).is_dir():
            return sum(1 for _ in Path(folder).iterdir())
    return 0
