"""A TCP load balancer that distributes connections over the servers whose /readyz returns 200."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator

POLL_INTERVAL_S = 0.1


class Balancer:
    """Assigns each connection to a server in turn; all its requests go to this server."""

    def __init__(self, ports: list[int]) -> None:
        self.ready_ports: set[int] = set()
        self.port = 0
        self._ports_in_turn = itertools.cycle(ports)
        self._ports = ports
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, started: threading.Event, stop: asyncio.Event) -> None:
        polls = [asyncio.create_task(self._poll(port)) for port in self._ports]
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await stop.wait()
        for task in (*polls, *self._connections):
            task.cancel()
        await asyncio.gather(*polls, *self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # the next iteration of the loop removes closed transports

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
        for port in itertools.islice(self._ports_in_turn, 2 * len(self._ports)):
            if port not in self.ready_ports:
                continue
            try:
                server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                self.ready_ports.discard(port)
                continue
            pipes = [asyncio.create_task(_pipe(reader, server_writer))]
            pipes.append(asyncio.create_task(_pipe(server_reader, writer)))
            try:  # either side ends the connection
                await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pipe in pipes:
                    pipe.cancel()
                server_writer.close()
            return


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
