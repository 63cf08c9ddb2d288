"""Clusters that have no machine for a trial yet, because an autoscaler adds machines on demand."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from sluice.base.errors import SettingsError
from sluice.cluster.places import count_places
from sluice.cluster.ray_session import machines
from sluice.cluster.settings import ComputeSettings

Autoscaler = Literal["present", "absent", "unknown"]

_POLL_S = 1.0
_REPEAT_S = 60.0
"""Time between two messages that say that a search waits."""
_MANUAL = "node_"
"""Ray's status calls the type of a machine that 'ray start' added, and no autoscaler, after its
node id."""
_STATUS_KEY = b"__autoscaling_status"


def wait_for_place(ray: Any, compute: ComputeSettings, say: Callable[[str], None]) -> None:
    """Return when one trial fits on a machine of the cluster.

    Where none fits and an autoscaler runs, the resources of a trial are requested, and ``say`` gets
    a message at once and then every minute until a machine is there. The same where it cannot be
    found out whether an autoscaler runs.

    Args:
        ray: The module, joined to the cluster.
        compute: What a trial reserves.
        say: Gets each message, as a logger does.

    Raises:
        SettingsError: No machine is large enough, and no autoscaler can add one.
    """
    try:
        count_places(machines(ray), compute)
    except SettingsError:
        found = find_autoscaler(ray) if compute.address is not None else "absent"
        if found == "absent":
            raise
        _wait(ray, compute, found, say)


def find_autoscaler(ray: Any) -> Autoscaler:
    """Return whether an autoscaler adds machines to the cluster that Ray has joined.

    Ray has no call that says it: what tells is that an autoscaler names the types of its machines,
    while the status of a cluster without one names each machine after its id.
    """
    try:
        reports: list[list[str]] = ray.get(ray.remote(num_cpus=0)(_reader()).remote())
    except ray.exceptions.RayError:
        return "unknown"
    return _judge(reports)


def _judge(reports: Sequence[Sequence[str]]) -> Autoscaler:
    names = [name for report in reports for name in report]
    if any(not name.startswith(_MANUAL) for name in names):
        return "present"
    return "absent" if names else "unknown"


def _reader() -> Callable[[], list[list[str]]]:
    # Run in a worker, because a driver behind 'ray://' cannot ask the head node. Inside a function
    # Ray sends the code itself.
    key = _STATUS_KEY

    def read() -> list[list[str]]:
        import ray
        from ray.autoscaler.v2.sdk import get_cluster_status

        worker: Any = ray._private.worker.global_worker
        client = worker.gcs_client
        reports = []
        if status := client.internal_kv_get(key, None):  # the first autoscaler's
            report = json.loads(status).get("autoscaler_report") or {}
            reports.append([*report.get("active_nodes", {}), *report.get("pending_launches", {})])
        status = get_cluster_status(client.address)  # the second one's, as under KubeRay
        nodes = [*status.active_nodes, *status.idle_nodes, *status.pending_nodes]
        reports.append([node.ray_node_type_name for node in nodes])
        return reports

    return read


def _wait(
    ray: Any, compute: ComputeSettings, found: Autoscaler, say: Callable[[str], None]
) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        bundle["GPU"] = compute.gpus_per_worker
    wanted = ", ".join(f"{count:g} {name}" for name, count in bundle.items())
    # An autoscaler adds machines for requests that wait; Tune makes its own later on.
    request = placement_group([bundle])
    started = time.monotonic()
    said = -_REPEAT_S
    try:
        while not request.wait(_POLL_S):
            waited = time.monotonic() - started
            if waited - said >= _REPEAT_S:
                said = waited
                say(_message(found, wanted, len(machines(ray)), waited))
    finally:
        remove_placement_group(request)


def _message(found: Autoscaler, wanted: str, num_machines: int, waited_s: float) -> str:
    who = (
        "Its autoscaler was asked for one."
        if found == "present"
        else "It cannot be found out whether an autoscaler adds one; without it, this waits until "
        "a machine joins."
    )
    return (
        f"No machine of the cluster has the {wanted} that a trial reserves (machines: "
        f"{num_machines}). {who} Waiting since {waited_s:.0f} s; stop with Ctrl-C and correct "
        "compute.cpus_per_worker or compute.gpus_per_worker if no machine can be so large."
    )
