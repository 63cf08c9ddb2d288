"""Load generator of the rehearsal: requests at a fixed rate over a few connections."""

import asyncio
import threading
import time
from dataclasses import dataclass
from random import Random

from sluice.rehearsal.replay import Replay

_CONNECTIONS = 16
_TIMEOUT_S = 15.0
"""A request without a response after this time has failed."""
_PAUSE_S = 0.05


@dataclass(slots=True)
class RequestCounts:
    """Counts of the requests by outcome."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    position: int = 0
    """Highest index of a requested row, from 0."""
    problem: str = ""
    """Error of the first failed request."""


class TrafficGenerator:
    """Sends requests until stopped, from its own thread; a context manager."""

    def __init__(
        self, replay: Replay, port: int, *, per_s: float, seconds: float, seed: int
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            replay: Builds the requests.
            port: Port on this machine.
            per_s: Request rate; 0 sends nothing [1/s].
            seconds: Duration of one pass over the rows, which then repeats.
            seed: Seeds the users.
        """
        self.counts = RequestCounts()
        self._replay = replay
        self._port = port
        self._per_s = per_s
        self._row_s = seconds / len(replay.keys)
        self._rng = Random(seed)
        self._stopped = threading.Event()
        self._began = 0.0
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> "TrafficGenerator":
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending, and wait for the open requests."""
        self._stopped.set()
        self._thread.join(_TIMEOUT_S + 5)

    def _run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        if self._per_s > 0:
            await asyncio.gather(*(self._client() for _ in range(_CONNECTIONS)))

    async def _client(self) -> None:
        connection: _Connection | None = None
        while True:
            due = self._began + self._number / self._per_s
            self._number += 1
            while time.monotonic() < due and not self._stopped.is_set():
                await asyncio.sleep(min(_PAUSE_S, max(0.0, due - time.monotonic())))
            if self._stopped.is_set():
                break
            counts = self.counts
            position = int((time.monotonic() - self._began) / self._row_s) % len(self._replay.keys)
            counts.position = max(counts.position, position)
            counts.sent += 1
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    if connection is None:
                        connection = await _Connection.open(self._port)
                    status = await connection.post(self._replay.body(position, rng=self._rng))
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._fail(f"{type(error).__name__}: {error}")
                if connection is not None:
                    connection.close()
                    connection = None
                await asyncio.sleep(_PAUSE_S)
                continue
            if status == 200:
                counts.answered += 1
            else:
                self._fail(f"status {status}")
        if connection is not None:
            connection.close()

    def _fail(self, problem: str) -> None:
        self.counts.failed += 1
        self.counts.problem = self.counts.problem or problem


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
        response = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = response.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self.reader.readexactly(int(length))
        return int(response.split(b" ", 2)[1])

    def close(self) -> None:
        self.writer.close()
