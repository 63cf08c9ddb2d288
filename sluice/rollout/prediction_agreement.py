"""Compares how much the predictions of both arms differ on held-out rows and on live requests.

The predictions of two good models differ, and held-out rows show by how much. If the difference is
several times as large on live requests, the live inputs probably differ from the training inputs.
For example, they have another unit, column order or normaliser.

Shape legend: N = rows, O = outputs, C = clients.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.rollout.contribution_limits import contribution_weights
from sluice.rollout.samples import Outputs, Sample
from sluice.rollout.state import PredictionDrift

_MIN_SPREAD_SHARE = 0.05
"""Minimum unit of distances [standard deviations of production's predictions]. Without a minimum,
tiny differences would cause a rollback if the predictions of both models are almost equal on
held-out rows."""

_MAX_CLIENT_FACTOR = 5
"""Maximum bound on one client's distance [multiples of ``max_disagreement``]. The bound is half the
number of clients, but at least 2 and at most this number. With three or more clients, one client
alone then cannot cause a rollback."""

_MAX_SUBNET_SHARE = 0.1
"""Maximum share of one client subnet in the total weight, if there are at least ten subnets."""

_MAX_PAIRS = 300
"""Maximum number of the newest pairs that are compared. More pairs would hide a recent change."""


class PredictionAgreement(Record):
    """Distance between both models' predictions on the same held-out rows."""

    difference: float = Field(ge=0, description="Mean absolute difference of the predictions.")
    spread: float = Field(ge=0, description="Standard deviation of production's predictions.")
    rows: int = Field(ge=1, description="Number of held-out rows.")

    @property
    def unit(self) -> float:
        """Unit of the distance on live requests: the difference on held-out rows, or a minimum."""
        return max(self.difference, _MIN_SPREAD_SHARE * self.spread)


def measure_agreement(
    production_NO: NDArray[np.float64], challenger_NO: NDArray[np.float64]
) -> PredictionAgreement:
    """Compare the predictions (N, O) of both models on the same rows.

    Raises:
        ContractError: The shapes differ, or predictions are empty or not finite.
    """
    is_comparable = production_NO.shape == challenger_NO.shape and production_NO.size > 0
    if (
        not is_comparable
        or not np.isfinite(production_NO).all()
        or not np.isfinite(challenger_NO).all()
    ):
        raise ContractError(
            "The predictions of both models on the held-out rows must be finite, not empty and of "
            f"the same shape, got the shapes {production_NO.shape} and {challenger_NO.shape}.",
            fix="Evaluate both models on the same rows first.",
        )
    return PredictionAgreement(
        difference=float(np.abs(production_NO - challenger_NO).mean()),
        spread=float(production_NO.std(axis=0).mean()),
        rows=len(production_NO),
    )


def measure_prediction_drift(
    samples: Sequence[Sample], agreement: PredictionAgreement, *, limit: float, min_pairs: int
) -> PredictionDrift:
    """Return how far the predictions of both arms differ on live requests.

    The distance is a multiple of the difference on held-out rows (``PredictionAgreement.unit``).

    The distance of a client is the mean over the client's pairs, up to a limit. The result is the
    weighted mean over clients, in which the total weight of one subnet's clients is limited too.

    Args:
        samples: Samples of the rollout, oldest first. Samples without outputs of both arms are
            ignored.
        agreement: Distance on the held-out rows.
        limit: Maximum distance without a rollback, as a multiple of the unit.
        min_pairs: Minimum number of pairs. With fewer pairs, the distance is NaN (unknown).
    """
    pairs = [sample for sample in samples if sample.production and sample.challenger]
    pairs = pairs[-_MAX_PAIRS:]
    if len(pairs) < min_pairs:
        return PredictionDrift(distance=float("nan"), limit=limit, rows=len(pairs))
    unit = agreement.unit
    ratios_by_client: dict[str, list[float]] = {}
    origin_by_client: dict[str, str] = {}
    for index, pair in enumerate(pairs):
        difference_O = _mean_output(pair.production) - _mean_output(pair.challenger)
        distance = float(np.abs(difference_O).mean())
        ratio = distance / unit if unit > 0 else (0.0 if distance == 0 else math.inf)
        # A sample from an older version of Sluice has no client and counts as a separate client.
        client = pair.client or f"{index}"
        ratios_by_client.setdefault(client, []).append(ratio)
        origin_by_client.setdefault(client, pair.origin or client)
    ratio_C = np.array([np.mean(ratios) for ratios in ratios_by_client.values()])
    bound = limit * min(_MAX_CLIENT_FACTOR, max(2.0, ratio_C.size / 2))
    weight_C = contribution_weights(list(origin_by_client.values()), max_share=_MAX_SUBNET_SHARE)
    mean_distance = float(np.average(np.minimum(ratio_C, bound), weights=weight_C))
    return PredictionDrift(distance=mean_distance, limit=limit, rows=len(pairs))


def _mean_output(outputs: Outputs | None) -> NDArray[np.float64]:
    output: NDArray[np.float64] = np.mean(np.array(outputs, np.float64), axis=0)
    return output
