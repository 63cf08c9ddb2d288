"""The app on uvicorn: from a source of weights to a process that drains before it ends."""

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
from sluice.registry.reading import Clock
from sluice.serving.acceptor import Acceptor
from sluice.serving.app import build_app
from sluice.serving.connections import ConnectionTable, connection_limit
from sluice.serving.following import Follower, Load, build_table
from sluice.serving.hosts import LOOPBACK, TrustedHosts
from sluice.serving.isolation import Isolate
from sluice.serving.log import ToJson
from sluice.serving.metrics import Metrics
from sluice.serving.protocol import BoundedProtocol
from sluice.serving.recorder import Recorder
from sluice.serving.reporting import Reporter, ReportSink
from sluice.serving.rollback import Hook
from sluice.serving.router import Router
from sluice.serving.server_metrics import ServerNow
from sluice.serving.settings import ServingSettings
from sluice.serving.state import Serving
from sluice.serving.tls import Tls
from sluice.serving.token_file import TokenFileWatch
from sluice.serving.tokens import Tokens
from sluice.serving.weights import WeightsSource


def open_serving(
    model: str,
    source: WeightsSource,
    load: Load,
    *,
    isolate: Isolate | None,
    settings: ServingSettings,
    tokens: Tokens,
    token_file: TokenFileWatch | None = None,
    hook: Hook | None = None,
    clock: Clock,
    log: Any,
    reports: ReportSink | None,
) -> Serving:
    """Read the weights and load what they name, so that a server starts ready or not at all.

    Args:
        model: Its name.
        source: Where the weights are.
        load: Returns the model of a candidate digest.
        isolate: Loads a challenger into a process of its own, once the server runs: production
            does not wait for it. None loads challengers as production.
        settings: Limits and pace.
        tokens: What clients must show.
        token_file: Where they are from, to follow its changes; None for tokens that stay.
        clock: Dates windows and ends leases.
        hook: Lets alerts roll back; without it they cannot.
        log: From ``json_log``.
        reports: Hears what the server sees; None for nobody.

    Raises:
        SluiceError: The source cannot be read, or production does not load.
    """
    weights = source.read()
    at_once = weights if isolate is None else weights.production_only()
    table, problem = build_table(
        at_once,
        load,
        isolate=isolate,
        settings=settings,
        before=None,
        abandoned=threading.Event(),
    )
    if at_once != weights:
        table = replace(table, weights=weights)
    metrics = Metrics()
    recorder = Recorder(per_s=0 if reports is None else settings.samples_per_s)
    router = Router(table, settings=settings, clock=clock, metrics=metrics, recorder=recorder)

    def told(event: str, what: str) -> None:
        log.info(event, what=what)

    follower = Follower(
        router, source, load, isolate=isolate, settings=settings, metrics=metrics, told=told
    )
    if problem:
        follower.note("challenger", problem)
    reporter = None
    if reports is not None:
        reporter = Reporter(
            reports,
            server=secrets.token_hex(8),
            model=model,
            router=router,
            follower=follower,
            recorder=recorder,
            metrics=metrics,
            settings=settings,
            clock=clock,
        )
    serving = Serving(
        model=model,
        router=router,
        follower=follower,
        reporter=reporter,
        metrics=metrics,
        settings=settings,
        tokens=tokens,
        token_file=token_file,
        hook=hook,
        log=log,
    )
    metrics.show(ServerNow(serving, clock))
    return serving


def require_token_beyond_loopback(host: str, tokens: Tokens) -> None:
    """Refuse to let the network in without a token.

    Raises:
        SettingsError: The host is not this machine alone, and something needs no token.
    """
    if tokens.open_scopes and host not in LOOPBACK:
        raise SettingsError(
            f"A server on {host} can be reached from elsewhere and requires a token, got none.",
            fix="Give --tokens or --token-file, or set SLUICE_SERVE_TOKEN, or stay on 127.0.0.1.",
        )


def in_clear(host: str, tokens: Tokens) -> Iterator[str]:
    """Yield a warning when tokens would travel in clear beyond this machine; call it without TLS.

    Args:
        host: Address to listen on.
        tokens: What clients must show.
    """
    if host not in LOOPBACK and tokens.grants:
        yield (
            f"Clients send their tokens in clear to {host}: whoever sees the traffic can use them. "
            "Give --tls-cert and --tls-key, or let a proxy on this machine speak TLS and listen on "
            "127.0.0.1."
        )


class DrainingServer(uvicorn.Server):
    """Says no on /readyz first, then stops accepting, then waits for requests under way.

    A second signal ends it at once.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        serving: Serving,
        *,
        listening: socket.socket,
        table: ConnectionTable,
        on_ready: Callable[[int], None],
    ) -> None:
        """Wrap uvicorn.

        Args:
            config: Uvicorn's.
            serving: Whose readiness is shown.
            listening: Bound socket; it is closed at the end.
            table: Limits of its connections.
            on_ready: Called with the port once requests are answered.
        """
        super().__init__(config)
        self._serving = serving
        self._listening = listening
        self._table = table
        self._on_ready = on_ready
        self._stop_at: float | None = None
        self._acceptor: Acceptor | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening and say where."""
        await super().startup(sockets=sockets)  # none: what uvicorn accepts, it does not limit
        self._listening.listen(self.config.backlog)
        self._acceptor = Acceptor(
            self._listening, table=self._table, make=self._protocol, tls=self.config.ssl
        )
        self._on_ready(self._listening.getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, then end as uvicorn does."""
        if self._acceptor is not None:
            await self._acceptor.close()
        await super().shutdown(sockets=sockets)

    def _protocol(self, accepted: socket.socket, address: str) -> BoundedProtocol:
        return BoundedProtocol(
            self.config,
            self.server_state,
            self.lifespan.state,
            table=self._table,
            accepted=accepted,
            address=address,
            body_timeout_s=self._serving.settings.body_timeout_s,
            max_body_bytes=self._serving.settings.max_body_bytes,
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain; uvicorn calls this on SIGINT and SIGTERM."""
        if self._serving.draining:
            self.should_exit = self.force_exit = True
        self._serving.drain()

    async def on_tick(self, counter: int) -> bool:
        """Stop once the notice was given; uvicorn calls this ten times a second."""
        if self._serving.draining and self._stop_at is None:
            self._stop_at = time.monotonic() + self._serving.settings.notice_s
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
        serving: What answers.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        tls: Certificate and key; None speaks in clear.
        on_ready: Called with the port once requests are answered.

    Raises:
        SettingsError: The address cannot be listened on, or the system grants too few descriptors.
    """
    limits = serving.settings.connections
    limit = connection_limit(limits)
    if limit < limits.max_connections:
        serving.log.warning(
            "connections",
            what=f"The system grants file descriptors for {limit} connections, "
            f"serving.connections.max_connections is {limits.max_connections}.",
        )
    table = ConnectionTable(limit=limit, settings=limits, metrics=serving.metrics)
    listening = listen(host, port)
    log = ToJson(serving.log)
    for name in ("uvicorn", "asyncio", "opentelemetry"):
        logging.getLogger(name).handlers = [log]
        logging.getLogger(name).propagate = False
    config = uvicorn.Config(
        build_app(serving, TrustedHosts(host, serving.settings.trusted_hosts)),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody reads what a proxy says of a client
        ssl_certfile=None if tls is None else tls.cert,
        ssl_keyfile=None if tls is None else tls.key,
        timeout_graceful_shutdown=math.ceil(serving.settings.drain_s),
        ws="none",
    )
    with listening:
        DrainingServer(config, serving, listening=listening, table=table, on_ready=on_ready).run(
            sockets=[]
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address, before anything costly is started.

    Raises:
        SettingsError: It cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio takes it for something else and leaves Nagle's delay of 40 ms on.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:  # a name that does not resolve is one, too
        listening.close()
        raise SettingsError(
            f"The server must listen on {host} port {port}, and cannot: {error.strerror or error}.",
            cause="Another process listens there, or the address is not of this machine.",
            fix="Stop the other one, or give --port another number; 0 takes a free one.",
        ) from None
    return listening
