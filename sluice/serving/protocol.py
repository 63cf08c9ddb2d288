"""HTTP/1.1 with limits that uvicorn does not have: time, bytes and number of what clients send.

Uvicorn (0.54, httptools) bounds neither the bytes of a header nor the time until it is complete,
ends an idle connection only after its first answer, and waits forever for a client that does not
read. A header of 120 MiB kept its event loop busy for seconds. Here every phase of a connection has
a time limit of its own:

    head    from the connection, or the first byte of a further request, to a complete header
    body    until the body is complete (the app answers a late one first, see ``body.py``)
    answer  none here: the app has its deadlines; one that is not taken makes way for others
    idle    between two requests
    closing until the client has taken what was sent

A refusal is JSON as the app's, where no other answer is under way, and ends the connection.
"""

import asyncio
import contextlib
import socket
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.serving.answer_writer import AnswerWriter
from sluice.serving.closing import Closing, raw_answer
from sluice.serving.connections import ConnectionTable
from sluice.serving.hosts import host_of_target
from sluice.serving.lazy_timer import LazyTimer

_MAX_PIPELINED = 16
"""Requests of one connection that may wait for the answers before theirs."""
_LINGER_S = 2.0
_LINGER_BYTES = 2**20
"""A client that is refused while it sends is read for so long and so far: closing at once would
take the answer from it."""
_BODY_EXTRA_S = 2.0
"""Time after the app's own limit of a body until its connection is cut."""
_LINE_BYTES = 4
"""Colon, space and line end of a header."""

Phase = Literal["head", "body", "answer", "idle", "closing"]


class _RefusedError(Exception):
    """Ends the parser; the protocol knows why."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        *args: Any,
        table: ConnectionTable,
        accepted: socket.socket,
        address: str,
        body_timeout_s: float,
        max_body_bytes: int,
        **more: Any,
    ) -> None:
        """Prepare; ``connection_made`` starts it.

        Args:
            args: Uvicorn's.
            table: All connections; this one is in it.
            accepted: Its socket.
            address: The client's, as ``counted_address`` says.
            body_timeout_s: Limit of the app for a body [s].
            max_body_bytes: Limit of the app for a body.
            more: Uvicorn's.
        """
        super().__init__(*args, **more)
        self.address = address
        self._accepted = accepted
        self._table = table
        self._limits = table.settings
        self._body_s = body_timeout_s + _BODY_EXTRA_S
        # One byte in a chunk takes six on the wire; nobody sends all of a body that way.
        self._max_wire_bytes = 2 * max_body_bytes + self._limits.max_header_bytes
        self._phase: Phase = "head"
        self._timer = LazyTimer(self.loop, self._late)
        self._ends_at: float | None = None  # end of the phase [s, time of the event loop]
        self._is_parsing = False
        self._write_timer: asyncio.TimerHandle | None = None
        self._closing: Closing | None = None
        self._is_evicted = False
        self._in_message = False
        self._waiting_bytes = 0  # received since the last complete header or body
        self._head_bytes = 0
        self._num_headers = 0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time until the first header is complete."""
        if self._is_evicted:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._enter("head", self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._stop_timers()
        self._table.remove(self)

    def data_received(self, data: bytes) -> None:
        """Parse, and count what is not yet a complete header or body."""
        if self._phase == "closing":
            self._waiting_bytes += len(data)
            if self._waiting_bytes > _LINGER_BYTES:
                self.transport.abort()
            return
        self._waiting_bytes += len(data)
        self._is_parsing = True
        super().data_received(data)
        self._is_parsing = False
        self._timer.set(self._ends_at)
        if self.transport.is_closing():
            return
        if self._phase in ("head", "idle") and self._waiting_bytes > self._limits.max_header_bytes:
            self._refuse(self._header_large())
        elif self._phase == "body" and self._waiting_bytes > self._max_wire_bytes:
            self._refuse(Closing.body_large(self._max_wire_bytes))

    def pause_writing(self) -> None:
        """Give the client some time to read; meanwhile the connection makes way for others."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self._unread)
        self._table.waits(self)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            if self._phase == "body":
                self._table.sends_body(self)
            elif self._phase != "closing":
                self._table.is_complete(self)

    def shutdown(self) -> None:
        """End it after the answer under way, if there is one."""
        super().shutdown()
        if self.transport.is_closing():
            self._await_end()

    def evict(self) -> None:
        """Close at once: another connection takes the place."""
        self._is_evicted = True
        if self.transport is not None:
            self.transport.abort()
        else:  # the event loop still opens it, or a TLS handshake is under way
            with contextlib.suppress(OSError):
                self._accepted.shutdown(socket.SHUT_RDWR)

    # Parser

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._in_message = True
        self._head_bytes = self._num_headers = 0
        if self._phase != "head":
            self._enter("head", self._limits.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Count it."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or a trailer; nobody needs trailers, which could replace headers."""
        self._num_headers += 1
        self._count_head(len(name) + len(value) + _LINE_BYTES)
        if self._phase == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the app."""
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._closing = Closing("pipelined", 503, "", "")  # an answer is under way: never told
            raise _RefusedError
        host = host_of_target(self.url)
        if host is not None:  # several Host headers stay: they are refused
            self.headers[:] = [(k, host if k == b"host" else v) for k, v in self.headers]
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # such an answer has no body
            self.cycle.transport = AnswerWriter(self.transport, self.cycle)  # type: ignore[assignment]
        self._waiting_bytes = 0
        if self._write_timer is None:  # or an answer that is not taken would hold its place
            self._table.sends_body(self)
        self._enter("body", self._body_s)

    def on_message_complete(self) -> None:
        """Wait for the answer, or for a further request when it was given already."""
        super().on_message_complete()
        self._in_message = False
        self._waiting_bytes = 0
        if self.cycle.response_complete:
            self._idle()
        else:
            if self._write_timer is None:
                self._table.is_complete(self)
            self._enter("answer", None)

    def on_response_complete(self) -> None:
        """Wait for a further request; uvicorn starts the next one that waits."""
        super().on_response_complete()
        self._unset_keepalive_if_required()  # every byte would stop uvicorn's own timer
        if self.transport.is_closing():
            self._await_end()
        elif self.cycle.response_complete:
            self._table.waits(self)
            if not self._in_message:
                self._idle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, or beyond a limit."""
        self._refuse(
            self._closing
            or Closing("malformed", 400, f"{msg.rstrip('.')}.", "Send a request of HTTP/1.1.")
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Answer the request as it is and close; uvicorn would log a line for every chunk."""
        self.cycle.keep_alive = False

    # Ends

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if (
            self._head_bytes > self._limits.max_header_bytes
            or self._num_headers > self._limits.max_headers
        ):
            self._closing = self._header_large()
            raise _RefusedError

    def _header_large(self) -> Closing:
        return Closing.header_large(self._limits.max_header_bytes, self._limits.max_headers)

    def _idle(self) -> None:
        self._table.waits(self)
        self._enter("idle", self._limits.idle_timeout_s)

    def _enter(self, phase: Phase, limit_s: float | None) -> None:
        self._phase = phase
        self._ends_at = None if limit_s is None else self.loop.time() + limit_s
        if not self._is_parsing:  # most requests go through several phases at once
            self._timer.set(self._ends_at)

    def _late(self) -> None:
        if self._phase == "head" and (self._in_message or self._waiting_bytes):
            self._refuse(Closing.header_late(self._limits.header_timeout_s))
        elif self._phase == "closing":
            self.transport.abort()
        else:
            # Without a byte of a request there is nothing to answer: it would be taken for the
            # answer to the next one.
            self._table.count_closed("body_late" if self._phase == "body" else "idle")
            self.transport.close()
            self._await_end()

    def _unread(self) -> None:
        self._table.count_closed("unread")
        self.transport.abort()

    def _refuse(self, closing: Closing) -> None:
        """Answer if nothing else is being answered; then end the connection."""
        self._table.count_closed(closing.reason)
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        self.transport.write(raw_answer(closing))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._waiting_bytes = 0
        self._table.waits(self)
        self._enter("closing", _LINGER_S)

    def _await_end(self) -> None:
        """Cut the connection if the client does not take what was sent."""
        self._table.waits(self)
        self._enter("closing", self._limits.write_timeout_s)

    def _stop_timers(self) -> None:
        self._timer.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
