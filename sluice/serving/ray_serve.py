"""The only adapter to Ray Serve: the same app in several processes behind Ray's proxy.

Ray starts the replicas, restarts those that die or hang, and distributes the requests. It does
not choose versions: each replica follows the ledger itself, and reports its counts there.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp

from sluice.base.errors import SettingsError, StorageError
from sluice.cluster.process import WORKER_ENVIRONMENT
from sluice.cluster.ray_session import join_ray, machine_resources
from sluice.cluster.settings import ComputeSettings
from sluice.serving.app import build_app
from sluice.serving.arm_environment import hide_from_children
from sluice.serving.hosts import TrustedHosts
from sluice.serving.log import json_log
from sluice.serving.log_writer import LogWriter
from sluice.serving.server import listen
from sluice.serving.server_spec import ServerSpec, open_server
from sluice.serving.tls import Tls

_APP = "sluice"
_START_S = 300.0
"""Replicas import torch when they start; longer than this is a failure."""
_POLL_S = 0.1
_SPREAD = {"RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0"}
"""Without it the proxy leaves the replicas on other machines idle until its own are full."""


class DrainSignal:
    """Signals all replicas to drain; runs as its own actor."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def set(self) -> None:
        """Signal the replicas."""
        self._event.set()

    async def wait(self) -> None:
        """Return once the signal is set."""
        await self._event.wait()


class Replica:
    """One process with the whole app; ``serve.ingress`` turns it into a deployment."""

    def __init__(self, spec: ServerSpec, signal: Any) -> None:
        """Open the server state, as ``sluice serve`` does.

        Args:
            spec: What is served.
            signal: Handle of the ``DrainSignal`` actor.
        """
        hide_from_children()
        # Never exited: the process ends with the replica.
        self._opened = open_server(
            spec, clock=lambda: datetime.now(UTC), log=json_log(LogWriter(sys.stderr))
        )
        self._serving = self._opened.__enter__()
        self._hosts = TrustedHosts(spec.host, spec.settings.trusted_hosts)
        self._draining = asyncio.get_running_loop().create_task(self._drain_upon(signal))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the app; called once by Ray."""
        return build_app(self._serving, self._hosts)

    async def check_health(self) -> None:
        """Raise when only a restart helps, as /healthz reports; called periodically by Ray."""
        hangs_s = self._serving.hangs_s(time.monotonic())
        if hangs_s:
            raise RuntimeError(f"production has computed one batch for {hangs_s:.1f} s")

    async def _drain_upon(self, signal: Any) -> None:
        try:
            await signal.wait.remote()
        finally:  # the actor is gone with the process that started it
            self._serving.drain()


def serve_on_ray(
    spec: ServerSpec,
    *,
    replicas: int,
    address: str | None,
    port: int,
    tls: Tls | None = None,
    on_ready: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Answer requests with several replicas until ``stop`` is set, then drain and return.

    Ray is started on this machine and ends with this process; or a running cluster is joined,
    and left running without Serve. The proxy listens on the head machine of the cluster.

    Args:
        spec: What is served.
        replicas: Number of processes; each reserves a core.
        address: Address of a cluster, as in ``ComputeSettings``; None for this machine.
        port: Port to listen on; 0 takes one that is free here.
        tls: Certificate and key, also present on the head machine; None serves plain HTTP.
        on_ready: Called with the port once requests are answered.
        stop: Set by another thread to stop.

    Raises:
        SettingsError: The cluster cannot be reached, is too small or already runs Serve; or the
            address cannot be used.
        StorageError: A replica cannot access the registry or the artifacts.
    """
    with join_ray(ComputeSettings(address=address)) as ray:
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        _require_room(ray, serve, replicas)
        with listen(spec.host, port) as probe:
            port = probe.getsockname()[1]
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": spec.host, "port": port} | _tls_options(tls),
            controller_options={"runtime_env": {"env_vars": _SPREAD}},
            logging_config=_quiet(),
        )
        try:
            signal = ray.remote(num_cpus=0)(DrainSignal).remote()
            _deploy(serve, spec, signal, replicas)
            on_ready(port)
            stop.wait()
            ray.get(signal.set.remote())
            time.sleep(spec.settings.drain_delay_s)
            serve.delete(_APP)
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]


def _tls_options(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {"ssl_certfile": str(tls.cert), "ssl_keyfile": str(tls.key)}


def _require_room(ray: Any, serve: Any, replicas: int) -> None:
    cores = sum(int(machine.get("CPU", 0)) for machine in machine_resources(ray))
    if cores < replicas:
        raise SettingsError(
            f"{replicas} replicas need one core each, but Ray has {cores}.",
            fix=f"Give --replicas {max(cores, 1)}, or add machines to the cluster.",
        )
    if serve.status().proxies:
        raise SettingsError(
            "Ray Serve already runs on this cluster, and the address of its proxy cannot be "
            "changed.",
            cause="Another server runs on the cluster, or one was killed.",
            fix="Stop it where it was started, or run: serve shutdown",
        )


def _deploy(serve: Any, spec: ServerSpec, signal: Any, replicas: int) -> None:
    """Start the replicas and wait until they answer."""
    settings = spec.settings
    application = serve.deployment(
        name="replica",
        num_replicas=replicas,
        max_ongoing_requests=2 * settings.max_in_flight,  # the app refuses before Ray queues
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        graceful_shutdown_wait_loop_s=_POLL_S,
        health_check_period_s=settings.deadline_s,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}},
        logging_config=_quiet(),
    )(serve.ingress()(Replica)).bind(spec, signal)
    target = serve.RunTarget(target=application, name=_APP, route_prefix="/")
    serve.run_many([target], wait_for_applications_running=False)
    until = time.monotonic() + _START_S
    while True:
        found = serve.status().applications[_APP]
        if found.status == "RUNNING":
            return
        if found.status in ("DEPLOY_FAILED", "UNHEALTHY") or time.monotonic() > until:
            raise StorageError(
                f"The {replicas} replicas did not start, the application is {found.status}: "
                f"{_last_lines(found)}",
                cause="They use another registry, other artifacts or other code than this process, "
                "or the cluster's cores are in use.",
                fix="Set SLUICE_HOME and SLUICE_REGISTRY_URL to locations shared by all machines.",
            )
        time.sleep(_POLL_S)


def _last_lines(application: Any) -> str:
    """Return the end of Ray's message, where the error follows its traceback."""
    messages = [application.message, *(part.message for part in application.deployments.values())]
    lines = [line.strip() for text in messages for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-600:] or "it took too long."


def _quiet() -> dict[str, Any]:
    return {"log_level": "WARNING", "enable_access_log": False}
