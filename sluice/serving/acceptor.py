"""Accepts connections within limits, so that clients cannot exhaust the server's resources.

With uvicorn alone, the event loop accepts connections until all file descriptors are used up. The
registry then cannot be opened either.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from sluice.serving.connections import ConnectionTable
from sluice.serving.early_responses import EarlyResponse, raw_response
from sluice.serving.hosts import address_for_limits
from sluice.serving.protocol import BoundedProtocol

_ACCEPT_RETRY_S = 0.1
"""Pause after the system refused to accept a connection, for example because no file descriptor
is free [s]."""
_TLS_SHUTDOWN_S = 2.0
"""Maximum time for the closing handshake of a TLS connection [s]."""

_BUSY_RESPONSE = raw_response(
    EarlyResponse(
        "busy",
        503,
        "The server or your address has reached its connection limit, and all of these connections "
        "are processing requests.",
        "Try again in a second, with fewer connections.",
    )
)


class Acceptor:
    """Accepts connections from a listening socket until ``close`` is called."""

    def __init__(
        self,
        listening_socket: socket.socket,
        *,
        connection_table: ConnectionTable,
        make_protocol: Callable[[socket.socket, str], BoundedProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Start accepting; requires a running event loop.

        Args:
            listening_socket: Bound socket. ``close`` closes it.
            connection_table: All open connections.
            make_protocol: Creates the protocol of a connection from its socket and the address
                of the client.
            tls: TLS context of the server; None serves plain HTTP.
        """
        listening_socket.setblocking(False)
        self._listening_socket = listening_socket
        self._connection_table = connection_table
        self._make_protocol = make_protocol
        self._tls = tls
        self._opening_tasks: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop accepting connections. Open connections are not closed."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._listening_socket.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client_socket, peer = await loop.sock_accept(self._listening_socket)
            except OSError:
                self._connection_table.count_closed("descriptors")
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            address = address_for_limits(peer[0])
            if not self._connection_table.make_room(address):
                self._connection_table.count_closed("busy")
                with client_socket:
                    if self._tls is None:  # with TLS, a response would first need a handshake
                        with contextlib.suppress(OSError):
                            client_socket.setblocking(False)
                            client_socket.send(_BUSY_RESPONSE)
                await asyncio.sleep(0)
                continue
            protocol = self._make_protocol(client_socket, address)
            self._connection_table.add(protocol)
            opening_task = loop.create_task(self._open(client_socket, protocol))
            self._opening_tasks.add(opening_task)
            opening_task.add_done_callback(self._opening_tasks.discard)
            # Let the event loop close evicted connections, even during a flood of new connections.
            await asyncio.sleep(0)

    async def _open(self, client_socket: socket.socket, protocol: BoundedProtocol) -> None:
        timeouts = {}
        if self._tls is not None:
            timeouts = {
                "ssl_handshake_timeout": self._connection_table.settings.header_timeout_s,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_S,
            }
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, client_socket, ssl=self._tls, **timeouts
            )
        except OSError:  # the loop closes the socket; ssl.SSLError is an OSError
            self._connection_table.remove(protocol)
            self._connection_table.count_closed("handshake")
