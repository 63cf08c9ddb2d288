"""The open connections of a server: how many there may be, and which makes way for a new one.

A connection *waits* while it has no request whose header is complete and whose answer is not: it is
silent, sends its header, or is idle between two requests. It also waits while its client does not
read the answer. A new connection beyond a limit closes the one that has waited longest; if none
waits, the one that has been sending its body longest. So many silent or slow connections lock
nobody out: a client that sends its request at once is past both. One whose request is complete is
never closed for another while its client reads.
"""

import itertools
import resource
from collections import Counter
from pathlib import Path
from typing import Protocol

from sluice.base.errors import SettingsError
from sluice.serving.connection_settings import ConnectionSettings
from sluice.serving.metrics import Closed, Metrics

MIN_CONNECTIONS = 8


class Connection(Protocol):
    """What the table needs of a connection."""

    address: str
    """The client's, as ``counted_address`` says."""

    def evict(self) -> None:
        """Close at once."""
        ...


class ConnectionTable:
    """All open connections of a server; touched by its event loop only."""

    def __init__(self, *, limit: int, settings: ConnectionSettings, metrics: Metrics) -> None:
        """Start without connections.

        Args:
            limit: Connections in total, from ``connection_limit``.
            settings: Limits of a single connection and of an address.
            metrics: Counts what is open, and what was closed and why.
        """
        self.settings = settings
        self._limit = limit
        self._metrics = metrics
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        # The first of each has been there longest.
        self._waiting: dict[Connection, None] = {}
        self._sending: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self, address: str) -> bool:
        """Say whether a connection from ``address`` may be added; it may close a waiting one."""
        if self._by_address[address] >= self.settings.max_per_address and not self._evict(address):
            return False
        return len(self._open) < self._limit or self._evict(None)

    def add(self, connection: Connection) -> None:
        """Count a connection; it waits."""
        self._open.add(connection)
        self._by_address[connection.address] += 1
        self._waiting[connection] = None
        self._metrics.connections.set(len(self._open))

    def remove(self, connection: Connection) -> None:
        """Forget a connection; a second time does nothing."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        self._metrics.connections.set(len(self._open))

    def waits(self, connection: Connection) -> None:
        """Note that a connection has no request under way, or does not take its answer."""
        if connection in self._open:
            self._sending.pop(connection, None)
            self._waiting.setdefault(connection)

    def sends_body(self, connection: Connection) -> None:
        """Note that the header of a request is complete."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._sending.setdefault(connection)

    def is_complete(self, connection: Connection) -> None:
        """Note that a request is complete, and its answer is not."""
        self._waiting.pop(connection, None)
        self._sending.pop(connection, None)

    def count_closed(self, reason: Closed) -> None:
        """Count a connection that the server closed or did not accept."""
        self._metrics.connections_closed[reason].inc()

    def _evict(self, address: str | None) -> bool:
        """Close the connection that is worth least, of one address or of all."""
        for connection in itertools.chain(self._waiting, self._sending):
            if address is None or connection.address == address:
                self.remove(connection)
                connection.evict()
                self.count_closed("evicted")
                return True
        return False


def connection_limit(settings: ConnectionSettings) -> int:
    """Return how many connections may be open, and let the system grant their descriptors.

    The soft limit of descriptors is raised as far as needed and allowed. What this process has open
    and ``reserved_descriptors`` are left out, so that clients cannot take what the registry needs.

    Raises:
        SettingsError: The hard limit leaves fewer than eight connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = _num_open() + settings.reserved_descriptors
    wanted = settings.max_connections + kept
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    limit = settings.max_connections
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft - kept)
    if limit < MIN_CONNECTIONS:
        raise SettingsError(
            f"A server needs file descriptors for {MIN_CONNECTIONS} connections beside "
            f"{settings.reserved_descriptors} reserved ones, and the system grants {soft} in all.",
            fix="Raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd), or lower "
            "serving.connections.reserved_descriptors.",
        )
    return limit


def _num_open() -> int:
    """Return how many descriptors this process has open."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if Path(folder).is_dir():
            return sum(1 for _ in Path(folder).iterdir())
    return 0
