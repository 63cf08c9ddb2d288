"""A lightweight load generator: sequential requests on a few open connections."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Latencies and failures of a server under load."""

    seconds: float
    """Duration of the load [s]."""
    latencies_s: tuple[float, ...]
    """Latency of every response [s]."""
    failed: int
    """Number of responses with a status other than 200."""

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.latencies_s) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Return the quantile ``share`` of the latency [ms]."""
        sorted_s = sorted(self.latencies_s)
        return 1e3 * sorted_s[min(len(sorted_s) - 1, int(share * len(sorted_s)))]


def run_paced_load(port: int, body: bytes, *, per_s: float, seconds: float) -> Load:
    """Send requests at a fixed rate; latency counts from the time when a request was due.

    Args:
        port: Port on this machine.
        body: Body of every request.
        per_s: Request rate [1/s].
        seconds: Duration [s].
    """
    return asyncio.run(_run(port, body, connections=8, seconds=seconds, per_s=per_s))


def run_saturating_load(port: int, body: bytes, *, connections: int, seconds: float) -> Load:
    """Send the next request on each connection as soon as the response has arrived."""
    return asyncio.run(_run(port, body, connections=connections, seconds=seconds, per_s=None))


async def _run(
    port: int, body: bytes, *, connections: int, seconds: float, per_s: float | None
) -> Load:
    head = (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    began = time.monotonic()
    due_times = _due_times(began, per_s=per_s, seconds=seconds)
    latencies: list[float] = []
    failed = 0

    async def client() -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for due_s in due_times:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                counted_from = due_s if per_s is not None else time.monotonic()
                writer.write(request)
                is_ok = await _read_response(reader)
                latencies.append(time.monotonic() - counted_from)
                failed += not is_ok
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return Load(seconds=time.monotonic() - began, latencies_s=tuple(latencies), failed=failed)


def _due_times(began: float, *, per_s: float | None, seconds: float) -> Iterator[float]:
    """Yield the due times of requests, shared by all connections."""
    if per_s is None:
        while time.monotonic() - began < seconds:
            yield 0.0
    else:
        yield from (began + number / per_s for number in range(int(per_s * seconds)))


async def _read_response(reader: asyncio.StreamReader) -> bool:
    """Read one response; return whether its status is 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return head.startswith(b"http/1.1 200")
