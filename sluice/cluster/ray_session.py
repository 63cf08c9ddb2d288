"""Starts Ray on this machine or joins a cluster, and disconnects at the end."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sluice.base.cpu_count import count_cores
from sluice.base.errors import SettingsError
from sluice.base.files import make_user_temporary_folder
from sluice.cluster.process import WORKER_ENVIRONMENT
from sluice.cluster.ray_address import require_cluster, unreachable_error
from sluice.cluster.ray_processes import ending_processes_on_error, without_unused_processes
from sluice.cluster.ray_token import keep_token_private
from sluice.cluster.runtime_env import hide_values, resolve_runtime_env
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import count_slots

T = TypeVar("T")
_RESPONSE_TIMEOUT_S = 60.0
"""Maximum wait for the response of a machine, which first starts a worker [s]. The start takes a
second on idle cores, and half a minute on a machine with eight processes per core."""
_MAX_START_ATTEMPTS = 3
"""Number of attempts to start Ray on this machine."""
_RUNTIME_ENV_FAILURE = "it cannot set up runtime_env, see runtime_env_setup-*.log on that machine"
_CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable with which Ray decides whether other machines may join."""


@contextlib.contextmanager
def join_ray(compute: ComputeSettings, *, num_cpus: int | None = None) -> Iterator[Any]:
    """Start Ray on this machine or join the cluster of ``compute``; yield the module ``ray``.

    If a Ray session is already active in this process, it is used and not stopped.

    Args:
        compute: Address and runtime environment.
        num_cpus: Number of cores of a Ray instance started here; all cores if None.

    Raises:
        SettingsError: Ray cannot start, the cluster cannot be reached or cannot set up the runtime
            environment, or a session is already active although ``compute`` sets ``address`` or
            ``runtime_env``.
        StorageError: Ray's token or its folder cannot be written on this machine.
    """
    # Import Ray here, because the import takes half a second, and not every program needs Ray.
    import ray

    was_active = ray.is_initialized()
    if compute.runtime_env is not None and was_active:
        raise SettingsError(
            "compute.runtime_env is set, but Ray is already running in this process.",
            fix="Pass runtime_env to your own ray.init and remove it from compute, or call "
            "ray.shutdown first.",
        )
    if compute.address is not None:
        require_cluster(compute.address)
        if was_active:
            raise SettingsError(
                f"compute.address is '{compute.address}', but Ray is already running in this "
                "process.",
                fix="Remove compute.address to use the running instance, or call ray.shutdown "
                "first.",
            )
    if not was_active:
        _start(ray, compute, num_cpus)
    try:
        yield ray
    finally:
        if not was_active:
            ray.shutdown()


def count_actor_slots(ray: Any, compute: ComputeSettings) -> int:
    """Return the number of workers that fit on the machines of Ray, at most ``compute.workers``.

    Raises:
        SettingsError: Not even one worker fits.
    """
    return count_slots(machine_resources(ray), compute)


def machine_resources(ray: Any) -> list[dict[str, float]]:
    """Return the resources of each live machine of the active Ray session."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def has_several_machines() -> bool:
    """Return whether Ray is active in this process and has several machines."""
    ray: Any = importlib.import_module("ray")
    return ray.is_initialized() and len(machine_resources(ray)) > 1


@dataclass(frozen=True, slots=True)
class MachineResponse(Generic[T]):
    """The response of one machine of the cluster to a function call."""

    host: str
    value: T | None = None
    """Return value of the function; None if it did not return."""

    error: str = ""
    """Why the machine cannot run the function, such as a failure of its runtime environment; empty
    otherwise."""

    @property
    def is_silent(self) -> bool:
        """Whether the machine returned neither a value nor an error in time."""
        return self.value is None and not self.error


def call_on_every_machine(function: Callable[[], T]) -> list[MachineResponse[T]]:
    """Call ``function`` in a worker of each machine of the active Ray session.

    Args:
        function: Function that does not return None. It is pickled by value if it is nested in
            another function.

    Returns:
        One response for each machine, except machines that left the cluster during the call before
        they returned a value. Empty without a Ray session.

    Cost:
        The start of a worker on each machine, in parallel: about a second on idle cores.
    """
    ray: Any = importlib.import_module("ray")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not ray.is_initialized():
        return []
    hosts = {node["NodeID"]: _host_name(node) for node in ray.nodes() if node["Alive"]}
    node_by_call = {
        ray.remote(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )(function).remote(): node_id
        for node_id in hosts
    }
    answered_calls, unanswered_calls = ray.wait(
        list(node_by_call), num_returns=len(node_by_call), timeout=_RESPONSE_TIMEOUT_S
    )
    responses: dict[str, MachineResponse[T]] = {}
    for reference in answered_calls:
        node_id = node_by_call[reference]
        try:
            responses[node_id] = MachineResponse(hosts[node_id], value=ray.get(reference))
        except ray.exceptions.RuntimeEnvSetupError:
            # Ray's own error is not used, because it contains the values of environment variables.
            responses[node_id] = MachineResponse(hosts[node_id], error=_RUNTIME_ENV_FAILURE)
        except ray.exceptions.RayError as error:
            responses[node_id] = MachineResponse(hosts[node_id], error=last_line(error))
    for reference in unanswered_calls:
        ray.cancel(reference, force=True)
        node_id = node_by_call[reference]
        responses[node_id] = MachineResponse(hosts[node_id])
    live_ids = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return [
        response
        for node_id, response in responses.items()
        if node_id in live_ids or response.value is not None
    ]


def _host_name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def last_line(error: Exception) -> str:
    """Return the last line of an error's text, without a full stop; without a text, its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")


def dashboard_url(ray: Any) -> str:
    """Return the address of the dashboard of the active Ray session; "" without a dashboard."""
    address: str = ray._private.worker.get_dashboard_url() or ""
    return address if "://" in address or not address else f"http://{address}"


def start_on_loopback(ray: Any, *, num_cpus: int | None = None) -> None:
    """Start Ray on this machine, with every port on 127.0.0.1 and token authentication.

    Ray makes its folder of sockets and logs writable for all users. Therefore Ray's folder is
    created inside a private folder of this user.

    Args:
        ray: The ``ray`` module.
        num_cpus: Number of cores that Ray schedules; all cores of this process if None.

    Raises:
        StorageError: Ray's token or its folder cannot be written.
    """
    from ray._common import utils
    from ray._private import ray_constants

    keep_token_private()
    temporary_folder: str = utils.get_default_system_temp_dir()  # type: ignore[no-untyped-call]
    folder = make_user_temporary_folder(Path(temporary_folder)) / "ray"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics without consent
    # Ray's processes inherit the environment of this process, and pass it to their workers.
    environment = {_CLUSTER_VARIABLE: "0", **WORKER_ENVIRONMENT}
    previous_flag = ray_constants.ENABLE_RAY_CLUSTER
    previous_values = {name: os.environ.get(name) for name in environment}
    # Set a flag so that Ray expects no other machines, as on macOS, and uses only 127.0.0.1. The
    # argument _node_ip_address="127.0.0.1" is not enough: Ray then selects another address and
    # listens on all interfaces.
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ.update(environment)
    try:
        with without_unused_processes():
            _init_with_retries(
                ray,
                folder,
                address="local",
                num_cpus=count_cores() if num_cpus is None else num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                job_config=_job_config(),
            )
    finally:  # restore the flag and the environment, because this process may join a cluster later
        ray_constants.ENABLE_RAY_CLUSTER = previous_flag
        for name, value in previous_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _init_with_retries(ray: Any, folder: Path, **options: Any) -> None:
    """Call ``ray.init``, and call it again if Ray's processes did not start in time.

    Ray waits 30 s for its processes. On a busy machine, the first start may take longer. The next
    attempt is faster.

    Args:
        ray: The ``ray`` module.
        folder: Folder of Ray's sessions.
        options: Other arguments of ``ray.init``.

    Raises:
        RuntimeError: Ray did not start in three attempts.
    """
    for attempt in range(_MAX_START_ATTEMPTS):
        try:
            with ending_processes_on_error(folder):
                ray.init(_temp_dir=str(folder), **options)
        except Exception as error:  # Ray raises a plain Exception
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
            if attempt == _MAX_START_ATTEMPTS - 1:
                raise RuntimeError(
                    f"its processes did not start within 30 s in {_MAX_START_ATTEMPTS} attempts; "
                    "the machine is busy with other work"
                ) from error
        else:
            return


def _job_config() -> Any:
    """Return a job config with which Ray does not change ``sys.path`` of its workers.

    By default Ray puts the working folder first, before the standard library.
    """
    from ray.job_config import JobConfig

    class UnchangedPath(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # Ray then does not add the working folder

    return UnchangedPath()


def _start(ray: Any, compute: ComputeSettings, num_cpus: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    runtime_env: dict[str, Any] = {}
    if compute.address is not None:
        runtime_env = resolve_runtime_env(compute.runtime_env, os.environ)
        options["runtime_env"] = runtime_env
    try:
        if compute.address is None:
            start_on_loopback(ray, num_cpus=num_cpus)
        elif compute.address.startswith("ray://"):
            ray.init(address=compute.address, **options)
        else:
            ray.init(address=compute.address, job_config=_job_config(), **options)
        if compute.runtime_env is not None:
            _try_runtime_env(ray)
    except ray.exceptions.RuntimeEnvSetupError as error:
        ray.shutdown()
        # Ray's own error contains the values of environment variables, so it is not chained.
        raise _runtime_env_error(hide_values(str(error), runtime_env)) from None
    except (OSError, ValueError, RuntimeError) as error:
        if compute.address is not None:
            reason = hide_values(str(error), runtime_env)
            raise unreachable_error(compute.address, reason) from None
        raise SettingsError(
            f"Ray could not start on this machine: {error}.",
            fix="Free memory and processes; if a path is too long, set RAY_TMPDIR to a short one.",
        ) from error


def _try_runtime_env(ray: Any) -> None:
    """Start one worker, so that an error of the runtime environment is raised early."""

    def do_nothing() -> None:
        return None

    ray.get(ray.remote(num_cpus=0, max_retries=0)(do_nothing).remote())


def _runtime_env_error(reason: str) -> SettingsError:
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    return SettingsError(
        f"The cluster cannot set up compute.runtime_env: {lines[-1] if lines else reason}",
        cause="A folder is too large to upload, a package cannot be installed on the cluster, or "
        "its machines cannot read a URL.",
        fix="Correct runtime_env. With 'excludes' you can omit files of working_dir. The whole "
        "output is in runtime_env_setup-*.log of Ray's session folder on the machine that failed.",
    )
