"""The HTTP server of the standard library, with limits so that no client can block it.

Without limits, that server waits for a request forever, starts a thread for every connection, and
accepts 6 MB of headers.
"""

import http.client
import io
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from pydantic import Field

from sluice.base.settings import Settings


class HttpLimits(Settings):
    """Limits on the connections, time and bytes that clients use."""

    max_threads: int = Field(
        32, ge=1, le=1000, description="Maximum number of connections served in parallel."
    )
    max_header_s: float = Field(
        5.0,
        gt=0,
        le=600,
        description="Maximum time from the connection to the end of the request header [s].",
    )
    max_header_bytes: int = Field(
        16_384,
        ge=1024,
        le=1_000_000,
        description="Maximum length of request line and header together [bytes].",
    )
    max_send_s: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Maximum time to send a page, or one block of a file [s].",
    )


class BoundedServer(ThreadingHTTPServer):
    """Serves a bounded number of connections in parallel.

    When a client connects and all threads are in use, the server closes the connection whose
    header has been incomplete for the longest time.
    """

    daemon_threads = True
    request_queue_size = 128  # with the default of 5, 40 idle clients block others for 5 s
    limits: ClassVar[HttpLimits] = HttpLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._free_threads = threading.BoundedSemaphore(self.limits.max_threads)
        self._lock = threading.Lock()
        self._incomplete_connections: dict[socket.socket, None] = {}
        """Connections with an incomplete header, oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread, or close it if no thread becomes free within 1 s."""
        if not self._free_threads.acquire(blocking=False):
            self._close_oldest()
            if not self._free_threads.acquire(timeout=1.0):
                self.shutdown_request(request)
                return
        with self._lock:
            self._incomplete_connections[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then release its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.mark_header_complete(request)
            self._free_threads.release()

    def mark_header_complete(self, request: Any) -> None:
        """Record that the header of a connection is complete, so that it is not closed."""
        with self._lock:
            self._incomplete_connections.pop(request, None)

    def _close_oldest(self) -> None:
        """Close the connection that has had an incomplete header for the longest time."""
        with self._lock:
            oldest_connection = next(iter(self._incomplete_connections), None)
            if oldest_connection is None:
                return
            del self._incomplete_connections[oldest_connection]
            # The thread of this connection then reads the end of the stream, and ends.
            try:
                oldest_connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # the client disconnected, or the thread has closed the socket

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnects and time-outs of clients; print other errors on stderr."""
        client_errors = (ConnectionError, TimeoutError, http.client.HTTPException)
        if not isinstance(sys.exception(), client_errors):
            super().handle_error(request, client_address)


class BoundedHandler(BaseHTTPRequestHandler):
    """Reads one header and sends the response within the server's limits."""

    server: BoundedServer

    def setup(self) -> None:
        """Install a reader that limits time and bytes."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_BoundedReader(self.connection, self.server.limits))

    def parse_request(self) -> bool:
        """Read the header, record that the reading has ended, and limit the time of each send."""
        is_parsed = super().parse_request()
        self.server.mark_header_complete(self.connection)
        self.connection.settimeout(self.server.limits.max_send_s)
        return is_parsed


class _BoundedReader(io.RawIOBase):
    """Reads a header from a connection, within limits of time and size."""

    def __init__(self, connection: socket.socket, limits: HttpLimits) -> None:
        self._connection = connection
        self._header_deadline_s = time.monotonic() + limits.max_header_s
        self._remaining_bytes = self._max_header_bytes = limits.max_header_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._remaining_bytes <= 0:
            raise http.client.HTTPException(
                f"The header is larger than {self._max_header_bytes} bytes"
            )
        remaining_s = self._header_deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the header was not complete in time")
        self._connection.settimeout(remaining_s)
        num_bytes = self._connection.recv_into(memoryview(buffer)[: self._remaining_bytes])
        self._remaining_bytes -= num_bytes
        return num_bytes
