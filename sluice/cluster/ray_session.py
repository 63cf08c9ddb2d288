"""The one adapter to Ray: start it on this machine or join a cluster, and leave it again."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sluice.base.cpu_count import count_cores
from sluice.base.errors import SettingsError
from sluice.base.files import own_temporary_folder
from sluice.cluster.places import count_places
from sluice.cluster.process import WORKER_ENVIRONMENT
from sluice.cluster.ray_address import require_cluster, unreachable
from sluice.cluster.ray_token import keep_token_private
from sluice.cluster.runtime_env import hide_values, resolve_runtime_env
from sluice.cluster.settings import ComputeSettings

T = TypeVar("T")
_ANSWER_S = 60.0
"""A machine that starts no worker within this time is silent: it takes a second on idle cores, and
half a minute on a machine whose cores have eight processes each."""
_STARTS = 3
_NO_RUNTIME_ENV = "it cannot set up runtime_env, see runtime_env_setup-*.log of that machine"
_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextlib.contextmanager
def join_ray(compute: ComputeSettings, *, num_cpus: int | None = None) -> Iterator[Any]:
    """Start Ray here, or join the cluster at ``compute.address``; yield the module ``ray``.

    A Ray that runs in this process already is used and left running.

    Args:
        compute: Where to.
        num_cpus: Cores that a Ray started here may hand out; all of them when None.

    Raises:
        SettingsError: The cluster cannot be reached, or Ray cannot start.
    """
    # Imported here: Ray takes half a second and only some work needs it.
    import ray

    own = not ray.is_initialized()
    if compute.runtime_env is not None and not own:
        raise SettingsError(
            "compute.runtime_env is set, and Ray runs in this process already.",
            fix="Pass runtime_env to your own ray.init and leave it out of compute, or call "
            "ray.shutdown first.",
        )
    if compute.address is not None:
        require_cluster(compute.address)
        if not own:
            raise SettingsError(
                f"The cluster at '{compute.address}' is asked for, and Ray runs in this process "
                "already.",
                fix="Leave compute.address out to use the running one, or call ray.shutdown first.",
            )
    if own:
        _start(ray, compute, num_cpus)
    try:
        yield ray
    finally:
        if own:
            ray.shutdown()


def count_actors(ray: Any, compute: ComputeSettings) -> int:
    """Return how many workers fit on the machines of the running Ray.

    Raises:
        SettingsError: Not one.
    """
    return count_places(machines(ray), compute)


def machines(ray: Any) -> list[dict[str, float]]:
    """Return what each machine of the running Ray has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def has_several_machines() -> bool:
    """Return whether the running Ray is a cluster of several machines; False without one."""
    ray: Any = importlib.import_module("ray")
    return ray.is_initialized() and len(machines(ray)) > 1


@dataclass(frozen=True, slots=True)
class MachineAnswer(Generic[T]):
    """What came back from one machine that was asked and still belongs to the cluster."""

    host: str
    value: T | None = None
    """What the function returned; None where it did not return."""

    error: str = ""
    """Why the machine cannot run it, such as a runtime environment that fails there."""

    @property
    def is_silent(self) -> bool:
        """Whether the machine neither returned a value nor failed in time."""
        return self.value is None and not self.error


def ask_every_machine(function: Callable[[], T]) -> list[MachineAnswer[T]]:
    """Call ``function`` in a worker of each machine of the running Ray; without one, nowhere.

    Args:
        function: Pickled by value when it is defined inside a function; never returns None.

    Returns:
        One answer for each machine, without those that the cluster lost meanwhile.

    Cost:
        The start of a worker on each machine: about a second on idle cores, and all at a time.
    """
    ray: Any = importlib.import_module("ray")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if not ray.is_initialized():
        return []
    hosts = {node["NodeID"]: _host_of(node) for node in ray.nodes() if node["Alive"]}
    asked = {
        ray.remote(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False),
        )(function).remote(): machine
        for machine in hosts
    }
    there, missing = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    found: dict[str, MachineAnswer[T]] = {}
    for answer in there:
        machine = asked[answer]
        try:
            found[machine] = MachineAnswer(hosts[machine], value=ray.get(answer))
        except ray.exceptions.RuntimeEnvSetupError:
            # Ray's own error repeats the values of variables.
            found[machine] = MachineAnswer(hosts[machine], error=_NO_RUNTIME_ENV)
        except ray.exceptions.RayError as error:
            found[machine] = MachineAnswer(hosts[machine], error=_last_line(error))
    for answer in missing:
        ray.cancel(answer, force=True)
        found[asked[answer]] = MachineAnswer(hosts[asked[answer]])
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return [each for machine, each in found.items() if machine in alive or each.value is not None]


def _host_of(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")


def dashboard_url(ray: Any) -> str:
    """Return the address of the dashboard of the Ray that this process uses; "" without one."""
    address: str = ray._private.worker.get_dashboard_url() or ""
    return address if "://" in address or not address else f"http://{address}"


def start_on_loopback(ray: Any, *, num_cpus: int | None = None) -> None:
    """Start Ray on this machine: every port on 127.0.0.1, every request with Ray's token.

    Ray lets everybody write to its folder of sockets and logs, so it lies in one of this user's.

    Args:
        ray: The module.
        num_cpus: Cores that Ray may hand out; all that this process may use when None.

    Raises:
        StorageError: Ray's token, or its folder, cannot be written.
    """
    from ray._common import utils
    from ray._private import ray_constants

    keep_token_private()
    base: str = utils.get_default_system_temp_dir()  # type: ignore[no-untyped-call]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unasked
    # Ray's processes inherit the environment, and its workers theirs.
    own = {_CLUSTER: "0", **WORKER_ENVIRONMENT}
    before = ray_constants.ENABLE_RAY_CLUSTER, {name: os.environ.get(name) for name in own}
    # Ray takes 127.0.0.1 as its address only where it expects no other machine, as on a laptop's
    # macOS; with _node_ip_address="127.0.0.1" it looks for another address and listens everywhere.
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ.update(own)
    try:
        _init_patiently(
            ray,
            address="local",
            num_cpus=count_cores() if num_cpus is None else num_cpus,
            include_dashboard=False,
            _temp_dir=str(own_temporary_folder(Path(base)) / "ray"),
            log_to_driver=False,
            logging_level="ERROR",
            job_config=_own_path(),
        )
    finally:  # a cluster may be joined later on
        ray_constants.ENABLE_RAY_CLUSTER = before[0]
        for name, value in before[1].items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _init_patiently(ray: Any, **options: Any) -> None:
    """Start Ray, again where its processes did not come up in time.

    Ray waits 30 s, of which a busy machine needs more for the first start than for the next one.

    Raises:
        RuntimeError: It did not come up in three attempts.
    """
    for attempt in range(_STARTS):
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises a bare one
            ray.shutdown()
            if "timed out during startup" not in str(error):
                raise
            if attempt == _STARTS - 1:
                raise RuntimeError(
                    f"its processes did not come up within 30 s in {_STARTS} attempts; the "
                    "machine is busy with other work"
                ) from error
        else:
            return


def _own_path() -> Any:
    """Return a job's settings that leave the path of its workers to Sluice.

    Ray would put the working folder in front of it, before the standard library.
    """
    from ray.job_config import JobConfig

    class OwnPath(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # what Ray asks before it adds the working folder

    return OwnPath()


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
            ray.init(address=compute.address, job_config=_own_path(), **options)
        if compute.runtime_env is not None:
            _try_runtime_env(ray)
    except ray.exceptions.RuntimeEnvSetupError as error:
        ray.shutdown()
        # Ray's own error repeats the values of variables, so it is not chained.
        raise _refused_runtime_env(hide_values(str(error), runtime_env)) from None
    except (OSError, ValueError, RuntimeError) as error:
        if compute.address is not None:
            why = hide_values(str(error), runtime_env)
            raise unreachable(compute.address, why) from None
        raise SettingsError(
            f"Ray could not start on this machine: {error}.",
            fix="Free memory and processes; if a path is too long, set RAY_TMPDIR to a short one.",
        ) from error


def _try_runtime_env(ray: Any) -> None:
    """Start one worker, so that a fault of the environment shows before a study starts."""

    def start() -> None:
        return None

    ray.get(ray.remote(num_cpus=0, max_retries=0)(start).remote())


def _refused_runtime_env(why: str) -> SettingsError:
    lines = [line.strip() for line in why.strip().splitlines() if line.strip()]
    return SettingsError(
        f"The cluster cannot set up compute.runtime_env: {lines[-1] if lines else why}",
        cause="A folder is too large to upload, a package cannot be installed there, or a URL "
        "cannot be read by its machines.",
        fix="Correct runtime_env; 'excludes' leaves files of working_dir out; the log "
        "runtime_env_setup-*.log of Ray's session folder on that machine has the whole output.",
    )
