"""What a request is answered by: the arms in force when it began, and who sent it.

Shape legend: N = windows, L = rows of a window, D = features.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.rollout.samples import ArmName
from sluice.rollout.weights import Weights
from sluice.serving.arm import Arm
from sluice.serving.contract import PredictRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """The arms of one state of the weights."""

    weights: Weights
    production: Arm
    challenger: Arm | None
    shadow: Arm | None
    """The networks of the arm that gets copies, in a thread that makes way for the other arm."""

    compared: Weights = field(init=False)
    """The weights, of production alone while there is no challenger to compare it with."""

    def __post_init__(self) -> None:
        """Settle what every request would ask."""
        alone = self.challenger is None
        compared = self.weights.production_only() if alone else self.weights
        object.__setattr__(self, "compared", compared)

    @property
    def copied(self) -> ArmName:
        """The arm that gets copies while there is a shadow."""
        return "production" if self.weights.share >= 1 else "challenger"


@dataclass(frozen=True, slots=True, eq=False)
class AskedRequest:
    """One request, and what was in force when it began."""

    table: Table
    weights: Weights
    compared: Weights
    request: PredictRequest
    x_NLD: NDArray[np.float32]
    client: str
    """As ``client_of`` says."""

    address: str
