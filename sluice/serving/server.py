"""Starts a server: loads the models, runs the app on uvicorn, and shuts it down gracefully."""

import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn

from sluice.base.errors import SettingsError
from sluice.registry.readonly import Clock
from sluice.serving.acceptor import Acceptor
from sluice.serving.app import build_app
from sluice.serving.connections import ConnectionTable, raise_descriptor_limit
from sluice.serving.hosts import LOOPBACK, TrustedHosts
from sluice.serving.isolation import Isolate
from sluice.serving.log import JsonLogHandler
from sluice.serving.metrics import Metrics
from sluice.serving.protocol import BoundedProtocol
from sluice.serving.reporting import Reporter, ReportSink
from sluice.serving.rollback import RollbackWebhook
from sluice.serving.router import Router
from sluice.serving.sample_buffer import SampleBuffer
from sluice.serving.server_metrics import ServerStateCollector
from sluice.serving.settings import ServingSettings
from sluice.serving.split_sync import SplitSync
from sluice.serving.state import Serving
from sluice.serving.table_building import LoadModel, build_routing_table
from sluice.serving.tls import Tls
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens
from sluice.serving.traffic_split import TrafficSplitSource


def open_serving(
    model: str,
    source: TrafficSplitSource,
    load: LoadModel,
    *,
    isolate: Isolate | None,
    settings: ServingSettings,
    tokens: Tokens,
    token_file: TokenFileWatch | None = None,
    webhook: RollbackWebhook | None = None,
    clock: Clock,
    log: Any,
    reports: ReportSink | None,
) -> Serving:
    """Read the traffic split and load its models, and return the state of a server.

    Args:
        model: Name of the model.
        source: Source of the traffic split.
        load: Loads the model of a candidate digest.
        isolate: Loads a challenger into its own process, after the server has started with
            production alone. None loads a challenger like production.
        settings: Limits and intervals.
        tokens: Tokens that clients may use.
        token_file: File of the tokens, which is reloaded when it changes; None for fixed tokens.
        webhook: Executes the rollbacks that alerts request; None disables them.
        clock: Clock that dates request counts and decides when a lease ends.
        log: Logger from ``json_log``.
        reports: Destination of reports; None for no reports.

    Raises:
        SluiceError: The source cannot be read, or production does not load.
    """
    split = source.read()
    initial_split = split if isolate is None else split.without_challenger()
    table, problem = build_routing_table(
        initial_split,
        load,
        isolate=isolate,
        settings=settings,
        previous_table=None,
        cancel_event=threading.Event(),
    )
    if initial_split != split:
        table = replace(table, split=split)
    metrics = Metrics()
    buffer = SampleBuffer(per_s=0 if reports is None else settings.samples_per_s)
    router = Router(table, settings=settings, clock=clock, metrics=metrics, buffer=buffer)

    def log_event(event: str, what: str) -> None:
        log.info(event, what=what)

    split_sync = SplitSync(
        router,
        source,
        load,
        isolate=isolate,
        settings=settings,
        metrics=metrics,
        log_event=log_event,
    )
    if problem:
        split_sync.set_problem("challenger", problem)
    reporter = None
    if reports is not None:
        reporter = Reporter(
            reports,
            server=secrets.token_hex(8),
            model=model,
            router=router,
            split_sync=split_sync,
            buffer=buffer,
            metrics=metrics,
            settings=settings,
            clock=clock,
        )
    serving = Serving(
        model=model,
        router=router,
        split_sync=split_sync,
        reporter=reporter,
        metrics=metrics,
        settings=settings,
        tokens=tokens,
        token_file=token_file,
        webhook=webhook,
        log=log,
    )
    metrics.register_collector(ServerStateCollector(serving, clock))
    return serving


def require_token_beyond_loopback(host: str, tokens: Tokens) -> None:
    """Refuse to listen on a network address if clients need no token.

    Raises:
        SettingsError: The host is not a loopback address, and a route of clients needs no token.
    """
    if tokens.open_scopes and host not in LOOPBACK:
        raise SettingsError(
            f"A server on {host} can be reached from the network, so its clients need a token, but "
            "no token for clients is set.",
            fix="Give --tokens or --token-file, or set SLUICE_SERVE_TOKEN, or listen on 127.0.0.1.",
        )


def cleartext_warnings(host: str, tokens: Tokens) -> Iterator[str]:
    """Yield a warning if clients would send tokens over the network in clear text.

    Call this function only for a server without TLS.

    Args:
        host: Address to listen on.
        tokens: Tokens that clients use.
    """
    if host not in LOOPBACK and tokens.grants:
        yield (
            f"Clients send their tokens to {host} in clear text, so anyone who reads the traffic "
            "can use them. Give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy on "
            "this machine that terminates TLS."
        )


class DrainingServer(uvicorn.Server):
    """Uvicorn server that drains at shutdown.

    First /readyz fails, then no more connections are accepted, then requests in progress finish.
    A second signal ends the server immediately.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        serving: Serving,
        *,
        listening_socket: socket.socket,
        connection_table: ConnectionTable,
        on_ready: Callable[[int], None],
    ) -> None:
        """Wrap uvicorn.

        Args:
            config: Configuration of uvicorn.
            serving: State of the server.
            listening_socket: Bound socket. The server closes this socket at shutdown.
            connection_table: Open connections and their limits.
            on_ready: Called with the port once the server answers requests.
        """
        super().__init__(config)
        self._serving = serving
        self._listening_socket = listening_socket
        self._connection_table = connection_table
        self._on_ready = on_ready
        self._stop_at: float | None = None
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening and report the port."""
        # ``sockets`` is empty, because uvicorn would accept connections from them without limits.
        await super().startup(sockets=sockets)
        self._listening_socket.listen(self.config.backlog)
        self._acceptor = Acceptor(
            self._listening_socket,
            connection_table=self._connection_table,
            make_protocol=self._make_protocol,
            tls=self.config.ssl,
        )
        self._on_ready(self._listening_socket.getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then shut down uvicorn."""
        if self._acceptor is not None:
            await self._acceptor.close()
        await super().shutdown(sockets=sockets)

    def _make_protocol(self, client_socket: socket.socket, address: str) -> BoundedProtocol:
        return BoundedProtocol(
            self.config,
            self.server_state,
            self.lifespan.state,
            connection_table=self._connection_table,
            client_socket=client_socket,
            address=address,
            body_timeout_s=self._serving.settings.body_timeout_s,
            max_body_bytes=self._serving.settings.max_body_bytes,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start to drain, or end if already draining. Uvicorn calls this on SIGINT and SIGTERM."""
        if self._serving.is_draining:
            self.should_exit = self.force_exit = True
        self._serving.drain()

    async def on_tick(self, counter: int) -> bool:
        """Stop once the drain delay is over. Uvicorn calls this ten times a second."""
        if self._serving.is_draining and self._stop_at is None:
            self._stop_at = time.monotonic() + self._serving.settings.drain_delay_s
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self.should_exit = True
        return await super().on_tick(counter)


def serve(
    serving: Serving,
    *,
    host: str,
    port: int,
    tls: Tls | None = None,
    on_ready: Callable[[int], None],
) -> None:
    """Answer requests until SIGTERM, SIGINT or ``serving.drain()``, then drain and return.

    Args:
        serving: State of the server.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free port.
        tls: Certificate and key; None serves plain HTTP.
        on_ready: Called with the port once the server answers requests.

    Raises:
        SettingsError: The address cannot be used, or the system grants too few file descriptors.
    """
    settings = serving.settings.connections
    max_connections = raise_descriptor_limit(settings)
    if max_connections < settings.max_connections:
        serving.log.warning(
            "connections",
            what=f"The system grants file descriptors for {max_connections} connections only, "
            f"although serving.connections.max_connections is {settings.max_connections}.",
        )
    connection_table = ConnectionTable(
        limit=max_connections, settings=settings, metrics=serving.metrics
    )
    listening_socket = bind_socket(host, port)
    handler = JsonLogHandler(serving.log)
    for name in ("uvicorn", "asyncio", "opentelemetry"):
        logging.getLogger(name).handlers = [handler]
        logging.getLogger(name).propagate = False
    config = uvicorn.Config(
        build_app(serving, TrustedHosts(host, serving.settings.trusted_hosts)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client could forge the headers with which proxies describe clients
        ssl_certfile=None if tls is None else tls.cert,
        ssl_keyfile=None if tls is None else tls.key,
        timeout_graceful_shutdown=math.ceil(serving.settings.drain_timeout_s),
        ws="none",
    )
    with listening_socket:
        DrainingServer(
            config,
            serving,
            listening_socket=listening_socket,
            connection_table=connection_table,
            on_ready=on_ready,
        ).run(sockets=[])


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address.

    The function also serves to check an address before anything expensive is started.

    Raises:
        SettingsError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without an explicit IPPROTO_TCP, asyncio does not recognise TCP. It then does not disable
    # Nagle's algorithm, which delays responses by 40 ms.
    bound_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound_socket.bind((host, port))
    except OSError as error:  # includes a name that does not resolve
        bound_socket.close()
        raise SettingsError(
            f"The server cannot listen on {host} port {port}: {error.strerror or error}.",
            cause="Another process uses the port, the system reserves it, or this machine does not "
            "have the address.",
            fix="Stop that process, or give another --port (0 selects a free port) or --host.",
        ) from None
    return bound_socket
