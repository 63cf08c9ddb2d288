"""Writes the head and the body of a response in one system call, and so in one packet."""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ResponseWriter:
    """Transport of one response for uvicorn, which writes the head first, then the body."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        """Prepare.

        Args:
            transport: Transport of the connection.
            cycle: Request-response cycle of uvicorn.
        """
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Write data; the head is written together with what follows it."""
        if self._head is not None:
            data, self._head = self._head + data, b""
        elif self._cycle.response_started:  # otherwise "100 Continue", which the client awaits
            self._head = data
            return
        if data:
            self._transport.write(data)

    def flush(self) -> None:
        """Write a head without a body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self._transport.is_closing()
