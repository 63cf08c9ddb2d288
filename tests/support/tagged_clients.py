"""Clients that send requests at a fixed rate, and record the version and arm of each response."""

import asyncio
import json
import random
import threading
import time
from dataclasses import dataclass

import numpy as np

_NUM_CONNECTIONS = 8
_NUM_USERS = 400
_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Result of one request. The status is 0 if no response arrived."""

    sent_at: float
    """Time at which the request was sent, as a Unix time [s]."""
    ended_at: float
    """Time at which the response or an error arrived, as a Unix time [s]."""
    status: int
    version: int = 0
    arm: str = ""
    rollout: str | None = None
    problem: str = ""


class TaggedClients:
    """Sends requests from a thread until the context ends."""

    def __init__(self, port: int, *, columns: tuple[str, ...], seq_len: int, per_s: float) -> None:
        self.results: list[RequestResult] = []
        self.num_sent = 0
        self._port, self._requests_per_s = port, per_s
        self._columns, self._seq_len = columns, seq_len
        self._rng = random.Random(0)
        self._values = np.random.default_rng(0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run_clients()), daemon=True
        )

    def __enter__(self) -> "TaggedClients":
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(_TIMEOUT_S + 5)

    async def _run_clients(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(_NUM_CONNECTIONS)))

    async def _client(self) -> None:
        streams = None
        while not self._stopped.is_set():
            due = self._began + self.num_sent / self._requests_per_s
            self.num_sent += 1
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent_at = time.time()
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    if streams is None:
                        streams = await asyncio.open_connection("127.0.0.1", self._port)
                    status, body = await self._post(*streams)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                message = f"{type(error).__name__}: {error}"
                self.results.append(RequestResult(sent_at, time.time(), 0, problem=message))
                if streams is not None:
                    streams[1].close()
                streams = None
                continue
            response = json.loads(body)
            self.results.append(
                RequestResult(
                    sent_at,
                    time.time(),
                    status,
                    version=response.get("version", 0),
                    arm=response.get("arm", ""),
                    rollout=response.get("rollout"),
                    problem="" if status == 200 else body.decode(),
                )
            )
        if streams is not None:
            streams[1].close()

    async def _post(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes]:
        window = self._values.normal(size=(self._seq_len, len(self._columns))).round(4)
        body = json.dumps(
            {
                "user": f"user {self._rng.randrange(_NUM_USERS)}",
                "columns": self._columns,
                "windows": [window.tolist()],
            }
        ).encode()
        writer.write(
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        return int(head.split(b" ", 2)[1]), await reader.readexactly(length)
