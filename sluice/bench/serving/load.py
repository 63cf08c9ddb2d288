"""A lightweight load generator: sequential requests on a few open connections."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Latencies and failures of a server under load."""

    seconds: float
    """Duration of the load [s]."""

    latencies_s: tuple[float, ...]
    """Latency of every response [s]."""

    num_failed: int
    """Number of responses with a status other than 200."""

    @property
    def responses_per_s(self) -> float:
        """Responses per second."""
        return len(self.latencies_s) / self.seconds

    def quantile_ms(self, fraction: float) -> float:
        """Return the latency that the given fraction of the responses did not exceed [ms]."""
        sorted_latencies_s = sorted(self.latencies_s)
        position = min(len(sorted_latencies_s) - 1, int(fraction * len(sorted_latencies_s)))
        return 1e3 * sorted_latencies_s[position]


def run_constant_rate_load(
    port: int, body: bytes, *, requests_per_s: float, seconds: float
) -> LoadResult:
    """Send requests at a fixed rate on eight connections.

    The latency of a request begins when the request is due, even if no connection is free then.

    Args:
        port: Port on this machine.
        body: Body of every request.
        requests_per_s: Request rate [1/s].
        seconds: Duration [s].
    """
    return asyncio.run(
        _run_load(port, body, num_connections=8, seconds=seconds, requests_per_s=requests_per_s)
    )


def run_saturating_load(
    port: int, body: bytes, *, num_connections: int, seconds: float
) -> LoadResult:
    """Send the next request on each connection as soon as the response has arrived."""
    return asyncio.run(
        _run_load(port, body, num_connections=num_connections, seconds=seconds, requests_per_s=None)
    )


async def _run_load(
    port: int, body: bytes, *, num_connections: int, seconds: float, requests_per_s: float | None
) -> LoadResult:
    head = (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    load_start_s = time.monotonic()
    due_times_s = _due_times(load_start_s, requests_per_s=requests_per_s, seconds=seconds)
    latencies_s: list[float] = []
    num_failed = 0

    async def client() -> None:
        nonlocal num_failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for due_s in due_times_s:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                start_s = due_s if requests_per_s is not None else time.monotonic()
                writer.write(request)
                is_ok = await _read_response(reader)
                latencies_s.append(time.monotonic() - start_s)
                num_failed += not is_ok
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(num_connections)))
    return LoadResult(
        seconds=time.monotonic() - load_start_s,
        latencies_s=tuple(latencies_s),
        num_failed=num_failed,
    )


def _due_times(
    load_start_s: float, *, requests_per_s: float | None, seconds: float
) -> Iterator[float]:
    """Yield the time at which each request is due, for all connections; 0 means at once."""
    if requests_per_s is None:
        while time.monotonic() - load_start_s < seconds:
            yield 0.0
    else:
        yield from (
            load_start_s + number / requests_per_s
            for number in range(int(requests_per_s * seconds))
        )


async def _read_response(reader: asyncio.StreamReader) -> bool:
    """Read one response; return whether its status is 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return head.startswith(b"http/1.1 200")
