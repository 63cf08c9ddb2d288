"""A TCP load balancer that distributes connections over the servers whose /readyz returns 200."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

POLL_INTERVAL_S = 0.1


class Balancer:
    """Assigns each connection to the next server in turn, with all requests of the connection."""

    def __init__(self, ports: list[int]) -> None:
        self.ready_ports: set[int] = set()
        self.port = 0
        self._ports_in_turn = itertools.cycle(ports)
        self._ports = ports
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, started: threading.Event, stop: asyncio.Event) -> None:
        poll_tasks = [asyncio.create_task(self._poll(port)) for port in self._ports]
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await stop.wait()
        for task in (*poll_tasks, *self._connections):
            task.cancel()
        await asyncio.gather(*poll_tasks, *self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # lets the event loop remove closed transports

    async def _poll(self, port: int) -> None:
        while True:
            if await self._is_ready(port):
                self.ready_ports.add(port)
            else:
                self.ready_ports.discard(port)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _is_ready(self, port: int) -> bool:
        writer = None
        try:
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
                response = await reader.read()
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()
        return response.startswith(b"HTTP/1.1 200")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # cancelled by run()
                await self._forward(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Each port is tried twice, because a server may become ready or fail in between.
        for port in itertools.islice(self._ports_in_turn, 2 * len(self._ports)):
            if port not in self.ready_ports:
                continue
            try:
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                self.ready_ports.discard(port)
                continue
            copy_tasks = [asyncio.create_task(_copy_bytes(reader, server_writer))]
            copy_tasks.append(asyncio.create_task(_copy_bytes(server_reader, writer)))
            try:  # the connection ends when either side closes it
                await asyncio.wait(copy_tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in copy_tasks:
                    task.cancel()
                server_writer.close()
            return


async def _copy_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def run_balancer(ports: list[int]) -> Iterator[Balancer]:
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
