"""The head and the body of an answer in one system call, and so in one packet."""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class AnswerWriter:
    """What uvicorn writes one answer to; it writes the head first, then each part of the body."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        """Prepare.

        Args:
            transport: Of the connection.
            cycle: The answer.
        """
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Write, the head together with what follows it."""
        if self._head is not None:
            data, self._head = self._head + data, b""
        elif self._cycle.response_started:  # else "100 Continue", which the client waits for
            self._head = data
            return
        if data:
            self._transport.write(data)

    def flush(self) -> None:
        """Write a head that nothing followed."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close the connection once everything is written."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Say whether the connection is closed or about to be."""
        return self._transport.is_closing()
