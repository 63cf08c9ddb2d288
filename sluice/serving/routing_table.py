"""The arms in force, and the context of a request: the arms when it began, and its client.

Shape legend: N = windows, L = rows of a window, D = features.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.rollout.samples import ArmName
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.arm import ArmWorker
from sluice.serving.contract import PredictRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingTable:
    """The arms of one traffic split."""

    split: TrafficSplit
    production: ArmWorker
    challenger: ArmWorker | None
    shadow: ArmWorker | None
    """Networks of the arm that gets shadow requests, in a thread that yields to the other arm."""

    compared_split: TrafficSplit = field(init=False)
    """The split; production alone while there is no challenger to compare with."""

    def __post_init__(self) -> None:
        """Compute what every request needs."""
        alone = self.challenger is None
        compared = self.split.production_only() if alone else self.split
        object.__setattr__(self, "compared_split", compared)

    @property
    def shadowed(self) -> ArmName:
        """The arm that gets shadow requests, if any."""
        return "production" if self.split.share >= 1 else "challenger"


@dataclass(frozen=True, slots=True, eq=False)
class RequestContext:
    """One request, with the split in force when it began."""

    table: RoutingTable
    split: TrafficSplit
    compared_split: TrafficSplit
    request: PredictRequest
    x_NLD: NDArray[np.float32]
    client: str
    """Client, from ``client_of``."""

    address: str
