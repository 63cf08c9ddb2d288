"""Writes the head and the body of a response in one system call, and therefore in one packet."""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ResponseWriter:
    """Transport for one response. Joins the head and the body, which uvicorn writes separately."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        """Wrap a transport.

        Args:
            transport: Transport of the connection.
            cycle: Request-response cycle of uvicorn.
        """
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None
        """Head that is not written yet; None before the head, b"" after it was written."""

    def write(self, data: bytes) -> None:
        """Write data. The head is kept until the next call, and then written with its data."""
        if self._head is not None:
            data, self._head = self._head + data, b""
        # The first data of a started response are its head. "100 Continue" is written before the
        # response has started, and at once, because the client waits for it.
        elif self._cycle.response_started:
            self._head = data
            return
        if data:
            self._transport.write(data)

    def flush(self) -> None:
        """Write the head of a response that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or is being closed."""
        return self._transport.is_closing()
