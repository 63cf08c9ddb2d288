"""The only adapter to Ray Serve: runs the app in several processes behind Ray's proxy.

Ray starts the replicas, restarts replicas that end or hang, and distributes the requests. Ray does
not choose versions: each replica reads the ledger, and reports its counts there.
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
from sluice.serving.server import bind_socket
from sluice.serving.server_spec import ServerSpec, open_server
from sluice.serving.tls import Tls

_APP_NAME = "sluice"
_START_TIMEOUT_S = 300.0
"""Maximum time in which all replicas must start [s]. Each replica imports torch."""
_POLL_INTERVAL_S = 0.1
"""Interval at which the state of the replicas is read [s]."""
_BALANCED_ROUTING = {"RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0"}
"""Environment of Ray's controller, with which the proxy uses all replicas equally. By default the
proxy uses replicas on other machines only when the replicas on its own machine are fully loaded."""


class DrainSignal:
    """Signals all replicas to drain; runs as a separate Ray actor."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def set(self) -> None:
        """Signal the replicas."""
        self._event.set()

    async def wait(self) -> None:
        """Return once the signal is set."""
        await self._event.wait()


class Replica:
    """One process with the whole app.

    ``serve.ingress`` attaches the app to the class, and ``serve.deployment`` makes it a deployment.
    """

    def __init__(self, spec: ServerSpec, drain_signal: Any) -> None:
        """Open the server state, as ``sluice serve`` does.

        Args:
            spec: Specification of the server.
            drain_signal: Handle of the ``DrainSignal`` actor.
        """
        # A challenger runs in a child process. It must not read the credentials in this process's
        # environment.
        hide_from_children()
        # The context is never exited, because the process ends with the replica.
        self._server_context = open_server(
            spec, clock=lambda: datetime.now(UTC), log=json_log(LogWriter(sys.stderr))
        )
        self._serving = self._server_context.__enter__()
        self._hosts = TrustedHosts(spec.host, spec.settings.trusted_hosts)
        self._drain_task = asyncio.get_running_loop().create_task(self._drain_upon(drain_signal))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the app; called once by Ray."""
        return build_app(self._serving, self._hosts)

    async def check_health(self) -> None:
        """Raise if only a restart helps, which is when /healthz returns 503.

        Ray calls this periodically.
        """
        hang_duration_s = self._serving.hang_duration_s(time.monotonic())
        if hang_duration_s:
            raise RuntimeError(f"production has computed one batch for {hang_duration_s:.1f} s")

    async def _drain_upon(self, drain_signal: Any) -> None:
        try:
            await drain_signal.wait.remote()
        finally:  # also if the actor has ended together with the process that started it
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

    Without an address, Ray is started on this machine and ends with this process. With an
    address, the running cluster is joined; Serve is shut down at the end, and the cluster
    continues. The proxy listens on the head machine of the cluster.

    Args:
        spec: Specification of the server.
        replicas: Number of processes; each reserves a CPU core.
        address: Address of a cluster, as in ``ComputeSettings``; None for this machine.
        port: Port to listen on; 0 selects a port that is free on this machine.
        tls: Certificate and key, also present on the head machine; None serves plain HTTP.
        on_ready: Called with the port once the replicas answer requests.
        stop: Event that another thread sets to stop the server.

    Raises:
        SettingsError: The cluster cannot be reached, is too small or already runs Serve; or the
            address cannot be used.
        StorageError: A replica cannot access the registry or the artifacts.
    """
    with join_ray(ComputeSettings(address=address)) as ray:
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        _require_usable_cluster(ray, serve, replicas)
        # Check that the port can be used, and select a free port for 0. Ray binds the port later.
        with bind_socket(spec.host, port) as bound_socket:
            port = bound_socket.getsockname()[1]
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": spec.host, "port": port} | _tls_options(tls),
            controller_options={"runtime_env": {"env_vars": _BALANCED_ROUTING}},
            logging_config=_logging_config(),
        )
        try:
            drain_signal = ray.remote(num_cpus=0)(DrainSignal).remote()
            _deploy(serve, spec, drain_signal, replicas)
            on_ready(port)
            stop.wait()
            ray.get(drain_signal.set.remote())
            time.sleep(spec.settings.drain_delay_s)
            serve.delete(_APP_NAME)
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]


def _tls_options(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {"ssl_certfile": str(tls.cert), "ssl_keyfile": str(tls.key)}


def _require_usable_cluster(ray: Any, serve: Any, replicas: int) -> None:
    """Raise unless the cluster has a CPU core for each replica and does not run Serve yet."""
    num_cores = sum(int(machine.get("CPU", 0)) for machine in machine_resources(ray))
    if num_cores < replicas:
        raise SettingsError(
            f"Each of the replicas (--replicas {replicas}) needs one CPU core, but Ray has "
            f"{num_cores} in total.",
            fix=f"Give --replicas {num_cores}, or add machines to the cluster."
            if num_cores
            else "Add machines with CPU cores to the cluster.",
        )
    if serve.status().proxies:
        raise SettingsError(
            "Ray Serve already runs on this cluster, and the address of its proxy cannot be "
            "changed.",
            cause="Another server runs on the cluster, or was killed without stopping Ray Serve.",
            fix="Stop that server where it was started, or run: serve shutdown",
        )


def _deploy(serve: Any, spec: ServerSpec, drain_signal: Any, replicas: int) -> None:
    """Start the replicas and wait until they answer requests."""
    settings = spec.settings
    application = serve.deployment(
        name="replica",
        num_replicas=replicas,
        max_ongoing_requests=2 * settings.max_in_flight,  # the app refuses before Ray queues
        graceful_shutdown_timeout_s=settings.drain_timeout_s,
        graceful_shutdown_wait_loop_s=_POLL_INTERVAL_S,
        health_check_period_s=settings.deadline_s,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}},
        logging_config=_logging_config(),
    )(serve.ingress()(Replica)).bind(spec, drain_signal)
    target = serve.RunTarget(target=application, name=_APP_NAME, route_prefix="/")
    serve.run_many([target], wait_for_applications_running=False)
    give_up_at = time.monotonic() + _START_TIMEOUT_S
    while True:
        status = serve.status().applications[_APP_NAME]
        if status.status == "RUNNING":
            return
        if status.status in ("DEPLOY_FAILED", "UNHEALTHY") or time.monotonic() > give_up_at:
            raise StorageError(
                "The replicas did not start. The status of the application is "
                f"{status.status}: {_last_lines(status)}",
                cause="The replicas use another registry, other artifacts or other code than this "
                "process; or the CPU cores of the cluster are in use.",
                fix="Set SLUICE_HOME and SLUICE_REGISTRY_URL to locations shared by all machines, "
                "install the same code on all of them, and free a CPU core for each replica.",
            )
        time.sleep(_POLL_INTERVAL_S)


def _last_lines(application: Any) -> str:
    """Return the last lines of Ray's message: the error, which follows its traceback."""
    messages = [application.message, *(d.message for d in application.deployments.values())]
    lines = [line.strip() for text in messages for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-600:] or "the start took too long."


def _logging_config() -> dict[str, Any]:
    return {"log_level": "WARNING", "enable_access_log": False}
