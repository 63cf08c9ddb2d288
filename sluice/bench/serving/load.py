"""A client that costs little: one request after another on each of a few open connections."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a server did under a load."""

    seconds: float
    latencies_s: tuple[float, ...]
    failed: int

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies_s) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Return the latency that ``share`` of the answers stayed below [ms]."""
        ranked = sorted(self.latencies_s)
        return 1e3 * ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def paced(port: int, body: bytes, *, per_s: float, seconds: float) -> Load:
    """Send at a fixed pace, whether answers have come or not; a late answer counts from its due.

    Args:
        port: On this machine.
        body: Of every request.
        per_s: Pace [1/s].
        seconds: How long.
    """
    return asyncio.run(_run(port, body, connections=8, seconds=seconds, per_s=per_s))


def saturated(port: int, body: bytes, *, connections: int, seconds: float) -> Load:
    """Send the next request on each connection as soon as the last one is answered."""
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
    due = _moments(began, per_s=per_s, seconds=seconds)
    latencies: list[float] = []
    failed = 0

    async def client() -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for moment in due:
                await asyncio.sleep(max(0.0, moment - time.monotonic()))
                sent = moment if per_s is not None else time.monotonic()
                writer.write(request)
                answered = await _answer(reader)
                latencies.append(time.monotonic() - sent)
                failed += not answered
        finally:
            writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return Load(seconds=time.monotonic() - began, latencies_s=tuple(latencies), failed=failed)


def _moments(began: float, *, per_s: float | None, seconds: float) -> Iterator[float]:
    """Yield when requests are due; shared by all connections, so that the next free one sends."""
    if per_s is None:
        while time.monotonic() - began < seconds:
            yield 0.0
    else:
        yield from (began + number / per_s for number in range(int(per_s * seconds)))


async def _answer(reader: asyncio.StreamReader) -> bool:
    """Read one answer; say whether it is a 200."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))
    return head.startswith(b"http/1.1 200")
