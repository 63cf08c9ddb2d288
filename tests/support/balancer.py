"""A tiny load balancer: TCP connections go in turn to the servers whose /readyz says yes."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

LOOK_S = 0.1


class Balancer:
    """Knows nothing of requests: whoever keeps a connection stays with its server."""

    def __init__(self, ports: list[int]) -> None:
        self.ready: set[int] = set()
        self.port = 0
        self._turns = itertools.cycle(ports)
        self._ports = ports
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, started: threading.Event, stop: asyncio.Event) -> None:
        looking = [asyncio.create_task(self._look(port)) for port in self._ports]
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await stop.wait()
        for task in (*looking, *self._connections):
            task.cancel()
        await asyncio.gather(*looking, *self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is gone after the loop's next turn

    async def _look(self, port: int) -> None:
        while True:
            if await self._is_ready(port):
                self.ready.add(port)
            else:
                self.ready.discard(port)
            await asyncio.sleep(LOOK_S)

    async def _is_ready(self, port: int) -> bool:
        writer = None
        try:
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()
        return answer.startswith(b"HTTP/1.1 200")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # at the end; asyncio would complain
                await self._forward(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in itertools.islice(self._turns, 2 * len(self._ports)):
            if port not in self.ready:
                continue
            try:
                theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                self.ready.discard(port)
                continue
            ways = [asyncio.create_task(_pipe(reader, ours))]
            ways.append(asyncio.create_task(_pipe(theirs, writer)))
            try:  # either side ends the connection
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                ours.close()
            return


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def balancing(ports: list[int]) -> Iterator[Balancer]:
    """Run a balancer in a thread of this process."""
    balancer, started = Balancer(ports), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(balancer.run(started, stop)))
    thread.start()
    try:
        assert started.wait(10)
        yield balancer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
