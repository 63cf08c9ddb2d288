"""The one adapter to Ray Serve: the same app in several processes behind Ray's proxy (ROLL-1).

Ray starts the replicas, restarts those that die or hang, and spreads the requests. Which version
answers is none of its business: each replica follows the ledger by itself, and reports there what
it counts.
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
from sluice.cluster.ray_session import join_ray, machines
from sluice.cluster.settings import ComputeSettings
from sluice.serving.app import build_app
from sluice.serving.arm_environment import hide_from_children
from sluice.serving.hosts import TrustedHosts
from sluice.serving.log import json_log
from sluice.serving.log_writer import LogWriter
from sluice.serving.recipe import ServerRecipe, open_recipe
from sluice.serving.server import listen
from sluice.serving.tls import Tls

_APP = "sluice"
_START_S = 300.0
"""Replicas import torch when they start; this long without all of them is a fault."""
_LOOK_S = 0.1
_SPREAD = {"RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0"}
"""Or the proxy leaves all replicas of other machines idle until its own are full."""


class Notice:
    """Tells all replicas when no more requests are wanted; runs as an actor of its own."""

    def __init__(self) -> None:
        self._given = asyncio.Event()

    async def give(self) -> None:
        """Tell them."""
        self._given.set()

    async def given(self) -> None:
        """Return once it was given."""
        await self._given.wait()


class Replica:
    """One process with the whole app; ``serve.ingress`` makes a deployment of it."""

    def __init__(self, recipe: ServerRecipe, notice: Any) -> None:
        """Open everything, as ``sluice serve`` does.

        Args:
            recipe: What is served.
            notice: Handle of the actor with the ``Notice``.
        """
        hide_from_children()
        # Never left: the process ends with the replica.
        self._opened = open_recipe(
            recipe, clock=lambda: datetime.now(UTC), log=json_log(LogWriter(sys.stderr))
        )
        self._serving = self._opened.__enter__()
        self._hosts = TrustedHosts(recipe.host, recipe.settings.trusted_hosts)
        self._draining = asyncio.get_running_loop().create_task(self._drain_upon(notice))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the app; Ray asks once."""
        return build_app(self._serving, self._hosts)

    async def check_health(self) -> None:
        """Raise when only a restart helps, as /healthz says; Ray asks again and again."""
        hangs_s = self._serving.hangs_s(time.monotonic())
        if hangs_s:
            raise RuntimeError(f"production has computed one batch for {hangs_s:.1f} s")

    async def _drain_upon(self, notice: Any) -> None:
        try:
            await notice.given.remote()
        finally:  # an actor that is gone went with whoever started all this
            self._serving.drain()


def serve_on_ray(
    recipe: ServerRecipe,
    *,
    replicas: int,
    address: str | None,
    port: int,
    tls: Tls | None = None,
    on_ready: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Answer requests by several replicas until ``stop`` is set, then drain and return.

    Ray is started on this machine, and ended with this; or a running cluster is joined, and left
    running without Serve. The proxy listens on the cluster's head machine.

    Args:
        recipe: What is served.
        replicas: Processes; each reserves a core.
        address: Of a cluster, as in ``ComputeSettings``; None for this machine.
        port: Port to listen on; 0 takes one that is free here.
        tls: Certificate and key, on the cluster's head machine as well; None speaks in clear.
        on_ready: Called with the port once requests are answered.
        stop: Set by somebody else.

    Raises:
        SettingsError: The cluster cannot be reached, is too small or has a Serve already; or the
            address cannot be listened on.
        StorageError: A replica does not see the registry or the artifacts.
    """
    with join_ray(ComputeSettings(address=address)) as ray:
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        _require_room(ray, serve, replicas)
        with listen(recipe.host, port) as probe:
            port = probe.getsockname()[1]
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": recipe.host, "port": port} | _tls_options(tls),
            controller_options={"runtime_env": {"env_vars": _SPREAD}},
            logging_config=_quiet(),
        )
        try:
            notice = ray.remote(num_cpus=0)(Notice).remote()
            _deploy(serve, recipe, notice, replicas)
            on_ready(port)
            stop.wait()
            ray.get(notice.give.remote())
            time.sleep(recipe.settings.notice_s)
            serve.delete(_APP)
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]


def _tls_options(tls: Tls | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {"ssl_certfile": str(tls.cert), "ssl_keyfile": str(tls.key)}


def _require_room(ray: Any, serve: Any, replicas: int) -> None:
    cores = sum(int(machine.get("CPU", 0)) for machine in machines(ray))
    if cores < replicas:
        raise SettingsError(
            f"{replicas} replicas need a core each, and Ray has {cores}.",
            fix=f"Give --replicas {max(cores, 1)}, or add machines to the cluster.",
        )
    if serve.status().proxies:
        raise SettingsError(
            "Ray Serve must not run on this cluster yet, and does: its proxy has one address, "
            "which cannot be changed.",
            cause="Another server runs on it, or one was killed.",
            fix="Stop it where it was started, or run: serve shutdown",
        )


def _deploy(serve: Any, recipe: ServerRecipe, notice: Any, replicas: int) -> None:
    """Start the replicas and wait until they answer."""
    settings = recipe.settings
    application = serve.deployment(
        name="replica",
        num_replicas=replicas,
        max_ongoing_requests=2 * settings.max_in_flight,  # the app says no before Ray lets wait
        graceful_shutdown_timeout_s=settings.drain_s,
        graceful_shutdown_wait_loop_s=_LOOK_S,
        health_check_period_s=settings.deadline_s,
        max_constructor_retry_count=1,
        ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}},
        logging_config=_quiet(),
    )(serve.ingress()(Replica)).bind(recipe, notice)
    target = serve.RunTarget(target=application, name=_APP, route_prefix="/")
    serve.run_many([target], wait_for_applications_running=False)
    until = time.monotonic() + _START_S
    while True:
        found = serve.status().applications[_APP]
        if found.status == "RUNNING":
            return
        if found.status in ("DEPLOY_FAILED", "UNHEALTHY") or time.monotonic() > until:
            raise StorageError(
                f"{replicas} replicas must start, and the application is {found.status}: "
                f"{_last_words(found)}",
                cause="They see another registry, other artifacts or other code than this process, "
                "or the cluster's cores are taken.",
                fix="Set SLUICE_HOME and SLUICE_REGISTRY_URL to what all machines share.",
            )
        time.sleep(_LOOK_S)


def _last_words(application: Any) -> str:
    """Return the end of what Ray says: the error comes after its traceback."""
    said = [application.message, *(part.message for part in application.deployments.values())]
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-600:] or "it took too long."


def _quiet() -> dict[str, Any]:
    return {"log_level": "WARNING", "enable_access_log": False}
