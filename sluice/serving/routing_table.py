"""The routing table, which holds the arms in force, and the context of one request."""

from dataclasses import dataclass, field

from sluice.rollout.samples import ArmName
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.arm import ArmWorker
from sluice.serving.model_arrays import ModelArrays
from sluice.workloads.codecs.request import CodecRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTable:
    """The arms of one traffic split."""

    split: TrafficSplit
    production: ArmWorker
    challenger: ArmWorker | None
    shadow: ArmWorker | None
    """Worker that answers shadow requests in its own thread, so that user requests have
    priority."""

    compared_split: TrafficSplit = field(init=False)
    """Split under which the arms are compared: ``split``, without the challenger while it is not
    loaded."""

    def __post_init__(self) -> None:
        """Compute ``compared_split`` once instead of for every request."""
        is_alone = self.challenger is None
        compared = self.split.without_challenger() if is_alone else self.split
        object.__setattr__(self, "compared_split", compared)

    @property
    def shadow_arm_name(self) -> ArmName:
        """Name of the arm that gets shadow requests, if there are any."""
        return "production" if self.split.share >= 1 else "challenger"


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext:
    """One request, with the routing table and the split that were in force when it began."""

    table: RoutingTable
    split: TrafficSplit
    """Split of the table; after the end of its lease, without the challenger."""

    compared_split: TrafficSplit
    """``compared_split`` of the table; after the end of its lease, without the challenger."""

    request: CodecRequest
    x: ModelArrays
    """Decoded elements of the request."""

    client: str
    """Name of the client from ``registry.client_names.client_of``: "user KEY", or "address IP" for
    a request without a user key."""

    address: str
    """Network address of the client."""
