"""Waits until an autoscaler has added a machine that is large enough for a trial."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from sluice.base.errors import SettingsError
from sluice.base.pluralize import pluralize
from sluice.cluster.ray_session import machine_resources
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.slots import count_slots

AutoscalerPresence = Literal["present", "absent", "unknown"]

_POLL_S = 1.0
"""Interval at which the cluster is checked for a large enough machine [s]."""
_MESSAGE_INTERVAL_S = 60.0
"""Time between two messages while the search waits [s]."""
_MANUAL_NODE_PREFIX = "node_"
"""Prefix of node ids. If a machine was added by 'ray start' without an autoscaler, Ray's status
lists it under its node id."""
_STATUS_KEY = b"__autoscaling_status"
"""Key under which version 1 of Ray's autoscaler stores its status in Ray's key-value store."""


def wait_for_slot(ray: Any, compute: ComputeSettings, log: Callable[[str], None]) -> None:
    """Wait until one trial fits on a machine of the cluster.

    If no machine is large enough and the cluster has an autoscaler, the resources of a trial are
    requested, and a message is logged immediately and then every minute until a machine is
    available. The function also waits if it cannot determine whether the cluster has an autoscaler.

    Args:
        ray: The ``ray`` module, connected to the cluster.
        compute: Resources that a trial reserves.
        log: Function that receives each message.

    Raises:
        SettingsError: No machine is large enough, and the cluster has no autoscaler.
    """
    try:
        count_slots(machine_resources(ray), compute)
    except SettingsError:
        autoscaler = find_autoscaler(ray) if compute.address is not None else "absent"
        if autoscaler == "absent":
            raise
        _wait_for_machine(ray, compute, autoscaler, log)


def find_autoscaler(ray: Any) -> AutoscalerPresence:
    """Return whether the connected cluster has an autoscaler.

    Ray has no API for this question, so the names of machines in Ray's status are inspected. With
    an autoscaler, the name is the configured type of the machine; otherwise it is the node id.
    """
    try:
        name_lists: list[list[str]] = ray.get(
            ray.remote(num_cpus=0)(_make_status_reader()).remote()
        )
    except ray.exceptions.RayError:
        return "unknown"
    return _classify(name_lists)


def _classify(name_lists: Sequence[Sequence[str]]) -> AutoscalerPresence:
    names = [name for machine_names in name_lists for name in machine_names]
    if any(not name.startswith(_MANUAL_NODE_PREFIX) for name in names):
        return "present"
    return "absent" if names else "unknown"


def _make_status_reader() -> Callable[[], list[list[str]]]:
    # The function runs in a worker, because a driver that is connected by 'ray://' cannot query the
    # head node. It is nested, because Ray pickles nested functions by value.
    key = _STATUS_KEY

    def read_name_lists() -> list[list[str]]:
        import ray
        from ray.autoscaler.v2.sdk import get_cluster_status

        worker: Any = ray._private.worker.global_worker
        client = worker.gcs_client
        name_lists = []
        if status := client.internal_kv_get(key, None):  # autoscaler v1
            report = json.loads(status).get("autoscaler_report") or {}
            name_lists.append(
                [*report.get("active_nodes", {}), *report.get("pending_launches", {})]
            )
        status = get_cluster_status(client.address)  # autoscaler v2, used by KubeRay
        nodes = [*status.active_nodes, *status.idle_nodes, *status.pending_nodes]
        name_lists.append([node.ray_node_type_name for node in nodes])
        return name_lists

    return read_name_lists


def _wait_for_machine(
    ray: Any, compute: ComputeSettings, autoscaler: AutoscalerPresence, log: Callable[[str], None]
) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = {"CPU": compute.cpus_per_worker}
    if compute.gpus_per_worker:
        bundle["GPU"] = compute.gpus_per_worker
    required_resources = ", ".join(f"{count:g} {name}" for name, count in bundle.items())
    # Create a placement group, because the autoscaler adds machines for pending placement groups.
    # It is removed at the end; Tune creates its own placement groups later.
    request = placement_group([bundle])
    started_at = time.monotonic()
    last_message_s = -_MESSAGE_INTERVAL_S
    try:
        while not request.wait(_POLL_S):
            waited_s = time.monotonic() - started_at
            if waited_s - last_message_s >= _MESSAGE_INTERVAL_S:
                last_message_s = waited_s
                log(
                    _waiting_message(
                        autoscaler, required_resources, len(machine_resources(ray)), waited_s
                    )
                )
    finally:
        remove_placement_group(request)


def _waiting_message(
    autoscaler: AutoscalerPresence, required_resources: str, num_machines: int, waited_s: float
) -> str:
    autoscaler_text = (
        "The autoscaler was asked to add such a machine."
        if autoscaler == "present"
        else "It is unknown whether the cluster has an autoscaler. Without an autoscaler, the "
        "search waits until a machine is added manually."
    )
    return (
        f"No machine of the cluster has the {required_resources} that a trial reserves "
        f"({pluralize(num_machines, 'machine')}). {autoscaler_text} Waited {waited_s:.0f} s so "
        "far. If no machine can be that large, stop with Ctrl-C and lower compute.cpus_per_worker "
        "or compute.gpus_per_worker."
    )
