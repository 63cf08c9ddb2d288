"""HTTP/1.1 protocol that adds limits to uvicorn: for time, bytes and number of headers.

Uvicorn (0.54, httptools) limits neither the bytes of a header nor the time of its arrival. A header
of 120 MiB kept the event loop busy for seconds. Uvicorn closes an idle connection only after the
first response, and waits forever for a client that does not read. Here a connection has phases with
time limits:

    head     from the connection, or the first byte of a further request, to the complete header
    body     from the complete header to the complete body; the app has a shorter limit and
             responds earlier, see ``body.py``
    answer   from the complete body to the complete response; without a limit, because the app has
             deadlines
    idle     between two requests
    closing  from the response to the end of the connection

In every phase, a client that does not read its response is disconnected after a write timeout. A
request that exceeds a limit gets an error response in the JSON format of the app, unless another
response is in progress. The connection is then closed.
"""

import asyncio
import contextlib
import socket
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.serving.connections import ConnectionTable
from sluice.serving.early_responses import EarlyResponse, raw_response
from sluice.serving.hosts import host_of_target
from sluice.serving.lazy_timer import LazyTimer
from sluice.serving.response_writer import ResponseWriter

_MAX_PIPELINED = 16
"""Maximum number of requests of one connection that wait for earlier responses."""
_LINGER_S = 2.0
"""Maximum time for which the data of a refused client are read and dropped [s]. Closing the
connection immediately would discard the error response."""
_LINGER_BYTES = 2**20
"""Maximum amount of data that is read from a refused client and dropped [bytes]."""
_BODY_EXTRA_S = 2.0
"""Time from the app's limit for a body until the connection is closed [s]."""
_HEADER_EXTRA_BYTES = 4
"""Length of a header in addition to its name and value [bytes]: colon, space and line end."""

ConnectionPhase = Literal["head", "body", "answer", "idle", "closing"]


class _RefusedError(Exception):
    """Exception that stops the parser. The protocol has stored the reason as ``_refusal``."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP protocol of one connection, with limits of its times and sizes."""

    def __init__(
        self,
        *args: Any,
        connection_table: ConnectionTable,
        client_socket: socket.socket,
        address: str,
        body_timeout_s: float,
        max_body_bytes: int,
        **kwargs: Any,
    ) -> None:
        """Store the arguments; ``connection_made`` starts the protocol.

        Args:
            args: Arguments of uvicorn.
            connection_table: All connections, including this one.
            client_socket: Socket of the connection.
            address: Client address, from ``address_for_limits``.
            body_timeout_s: The app's time limit of a body [s].
            max_body_bytes: The app's size limit of a body [bytes].
            kwargs: Keyword arguments of uvicorn.
        """
        super().__init__(*args, **kwargs)
        self.address = address
        self._client_socket = client_socket
        self._connection_table = connection_table
        self._limits = connection_table.settings
        self._body_limit_s = body_timeout_s + _BODY_EXTRA_S
        # Includes the headers of chunks. In chunks of one byte, a body has six times its size. No
        # real client sends a whole body in such chunks, so twice the size suffices.
        self._max_wire_bytes = 2 * max_body_bytes + self._limits.max_header_bytes
        self._phase: ConnectionPhase = "head"
        self._timer = LazyTimer(self.loop, self._on_timeout)
        self._phase_ends_at: float | None = None  # end of the phase [s, time of the event loop]
        self._is_parsing = False
        self._write_timer: asyncio.TimerHandle | None = None
        self._refusal: EarlyResponse | None = None  # set before _RefusedError is raised
        self._is_evicted = False
        self._is_in_message = False  # True from the first to the last byte of a request
        self._num_pending_bytes = 0  # bytes received since the last complete header or body
        self._num_head_bytes = 0
        self._num_headers = 0

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first header."""
        if self._is_evicted:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._enter("head", self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        super().connection_lost(exc)
        self._stop_timers()
        self._connection_table.remove(self)

    def data_received(self, data: bytes) -> None:
        """Parse data, and count the bytes of an incomplete header or body."""
        if self._phase == "closing":
            self._num_pending_bytes += len(data)
            if self._num_pending_bytes > _LINGER_BYTES:
                self.transport.abort()
            return
        self._num_pending_bytes += len(data)
        self._is_parsing = True
        super().data_received(data)
        self._is_parsing = False
        self._timer.set(self._phase_ends_at)
        if self.transport.is_closing():
            return
        if (
            self._phase in ("head", "idle")
            and self._num_pending_bytes > self._limits.max_header_bytes
        ):
            self._refuse(self._header_large())
        elif self._phase == "body" and self._num_pending_bytes > self._max_wire_bytes:
            self._refuse(EarlyResponse.body_large(self._max_wire_bytes))

    def pause_writing(self) -> None:
        """Start the write timeout; until its end, a new connection may replace this one."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self._limits.write_timeout_s, self._on_write_timeout
            )
        self._connection_table.mark_waiting(self)

    def resume_writing(self) -> None:
        """Stop the write timeout."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            if self._phase == "body":
                self._connection_table.mark_sending(self)
            elif self._phase != "closing":
                self._connection_table.mark_complete(self)

    def shutdown(self) -> None:
        """Close after the response in progress, if there is one."""
        super().shutdown()
        if self.transport.is_closing():
            self._await_end()

    def evict(self) -> None:
        """Close immediately, because a new connection replaces this connection."""
        self._is_evicted = True
        if self.transport is not None:
            self.transport.abort()
        else:  # still being opened, or during the TLS handshake
            with contextlib.suppress(OSError):
                self._client_socket.shutdown(socket.SHUT_RDWR)

    # Parser

    def on_message_begin(self) -> None:
        """Start a request."""
        super().on_message_begin()
        self._is_in_message = True
        self._num_head_bytes = self._num_headers = 0
        if self._phase != "head":
            self._enter("head", self._limits.header_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the target."""
        self._count_head_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer; trailers are dropped, because they could replace headers."""
        self._num_headers += 1
        self._count_head_bytes(len(name) + len(value) + _HEADER_EXTRA_BYTES)
        if self._phase == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request to the app."""
        if len(self.pipeline) >= _MAX_PIPELINED:
            # This response has no text, because it is never sent: another response is in progress.
            self._refusal = EarlyResponse("pipelined", 503, "", "")
            raise _RefusedError
        host = host_of_target(self.url)
        if host is not None:  # if there are several Host headers, the middleware refuses them
            self.headers[:] = [(k, host if k == b"host" else v) for k, v in self.headers]
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # a response to HEAD has no body
            self.cycle.transport = ResponseWriter(self.transport, self.cycle)  # type: ignore[assignment]
        self._num_pending_bytes = 0
        if self._write_timer is None:  # with an unread response the connection stays "waiting"
            self._connection_table.mark_sending(self)
        self._enter("body", self._body_limit_s)

    def on_message_complete(self) -> None:
        """Wait for the response, or for a further request if the response was already sent."""
        super().on_message_complete()
        self._is_in_message = False
        self._num_pending_bytes = 0
        if self.cycle.response_complete:
            self._enter_idle()
        else:
            if self._write_timer is None:
                self._connection_table.mark_complete(self)
            self._enter("answer", None)

    def on_response_complete(self) -> None:
        """Wait for a further request; if requests are pipelined, uvicorn starts the next."""
        super().on_response_complete()
        # The idle timeout replaces uvicorn's timer, which any received byte would stop.
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            self._await_end()
        elif self.cycle.response_complete:
            self._connection_table.mark_waiting(self)
            if not self._is_in_message:
                self._enter_idle()

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that is invalid or exceeds a limit."""
        self._refuse(
            self._refusal
            or EarlyResponse(
                "malformed", 400, f"{msg.rstrip('.')}.", "Send a valid request of HTTP/1.1."
            )
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Answer the request without the upgrade, and close the connection after the response.

        Uvicorn's own method would log a line for every received chunk.
        """
        self.cycle.keep_alive = False

    # Limits and end

    def _count_head_bytes(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if (
            self._num_head_bytes > self._limits.max_header_bytes
            or self._num_headers > self._limits.max_headers
        ):
            self._refusal = self._header_large()
            raise _RefusedError

    def _header_large(self) -> EarlyResponse:
        return EarlyResponse.header_large(self._limits.max_header_bytes, self._limits.max_headers)

    def _enter_idle(self) -> None:
        self._connection_table.mark_waiting(self)
        self._enter("idle", self._limits.idle_timeout_s)

    def _enter(self, phase: ConnectionPhase, limit_s: float | None) -> None:
        self._phase = phase
        self._phase_ends_at = None if limit_s is None else self.loop.time() + limit_s
        # Most requests pass several phases in one call of data_received. It sets the timer once,
        # at its end.
        if not self._is_parsing:
            self._timer.set(self._phase_ends_at)

    def _on_timeout(self) -> None:
        if self._phase == "head" and (self._is_in_message or self._num_pending_bytes):
            self._refuse(EarlyResponse.header_late(self._limits.header_timeout_s))
        elif self._phase == "closing":
            self.transport.abort()
        else:
            # Nothing is sent. In the body phase, the app has already responded. In the other phases
            # no byte of a request has arrived, and the client would mistake an error for the
            # response to its next request.
            self._connection_table.count_closed("body_late" if self._phase == "body" else "idle")
            self.transport.close()
            self._await_end()

    def _on_write_timeout(self) -> None:
        self._connection_table.count_closed("unread")
        self.transport.abort()

    def _refuse(self, refusal: EarlyResponse) -> None:
        """Respond unless another response is in progress, then close the connection."""
        self._connection_table.count_closed(refusal.reason)
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
            return
        self.transport.write(raw_response(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._num_pending_bytes = 0
        self._connection_table.mark_waiting(self)
        self._enter("closing", _LINGER_S)

    def _await_end(self) -> None:
        """Start the closing phase, in which the client must read the response in time."""
        self._connection_table.mark_waiting(self)
        self._enter("closing", self._limits.write_timeout_s)

    def _stop_timers(self) -> None:
        self._timer.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
