"""Load generator of the rehearsal: requests at a fixed rate over a few connections."""

import asyncio
import threading
import time
from dataclasses import dataclass
from random import Random

from sluice.rehearsal.request_rows import RequestRows

_NUM_CONNECTIONS = 16
"""Number of concurrent connections, each with one request at a time."""
_TIMEOUT_S = 15.0
"""Time after which a request without a response has failed [s]."""
_PAUSE_S = 0.05
"""Interval at which a waiting client checks whether traffic has stopped, and its pause after a
failed request [s]."""


@dataclass(slots=True)
class RequestCounts:
    """Counts of the requests by outcome."""

    num_sent: int = 0
    num_answered: int = 0
    num_failed: int = 0
    max_index: int = 0
    """Highest index of a requested row, from 0."""
    first_error: str = ""
    """Error of the first failed request."""


class TrafficGenerator:
    """Sends requests until stopped, from its own thread; a context manager."""

    def __init__(
        self, rows: RequestRows, port: int, *, rate_per_s: float, seconds: float, seed: int
    ) -> None:
        """Prepare the thread; ``__enter__`` starts it.

        Args:
            rows: Rows to request; its methods build the bodies of the requests.
            port: Port on this machine.
            rate_per_s: Request rate [1/s]; 0 sends nothing.
            seconds: Duration of one pass over the rows [s]. After it, the first row follows again.
            seed: Seeds the users.
        """
        self.counts = RequestCounts()
        self._rows = rows
        self._port = port
        self._rate_per_s = rate_per_s
        self._seconds_per_row = seconds / len(rows.keys)
        self._rng = Random(seed)
        self._stop_event = threading.Event()
        self._started_at = 0.0
        self._num_scheduled = 0
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> "TrafficGenerator":
        self._started_at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending, and wait for the requests in progress."""
        self._stop_event.set()
        self._thread.join(_TIMEOUT_S + 5)

    def _run(self) -> None:
        asyncio.run(self._run_clients())

    async def _run_clients(self) -> None:
        if self._rate_per_s > 0:
            await asyncio.gather(*(self._run_client() for _ in range(_NUM_CONNECTIONS)))

    async def _run_client(self) -> None:
        connection: _Connection | None = None
        while True:
            due_at = self._started_at + self._num_scheduled / self._rate_per_s
            self._num_scheduled += 1
            while time.monotonic() < due_at and not self._stop_event.is_set():
                await asyncio.sleep(min(_PAUSE_S, max(0.0, due_at - time.monotonic())))
            if self._stop_event.is_set():
                break
            counts = self.counts
            elapsed_s = time.monotonic() - self._started_at
            index = int(elapsed_s / self._seconds_per_row) % len(self._rows.keys)
            counts.max_index = max(counts.max_index, index)
            counts.num_sent += 1
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    if connection is None:
                        connection = await _Connection.open(self._port)
                    status = await connection.post(self._rows.body(index, rng=self._rng))
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._count_failure(f"{type(error).__name__}: {error}")
                if connection is not None:
                    connection.close()
                    connection = None
                await asyncio.sleep(_PAUSE_S)
                continue
            if status == 200:
                counts.num_answered += 1
            else:
                self._count_failure(f"status {status}")
        if connection is not None:
            connection.close()

    def _count_failure(self, error: str) -> None:
        self.counts.num_failed += 1
        self.counts.first_error = self.counts.first_error or error


@dataclass(frozen=True, slots=True)
class _Connection:
    """One open HTTP/1.1 connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, port: int) -> "_Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, body: bytes) -> int:
        """Send a prediction request and return the response status."""
        head = (
            "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        response_head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        body_length = response_head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self.reader.readexactly(int(body_length))
        return int(response_head.split(b" ", 2)[1])

    def close(self) -> None:
        self.writer.close()
