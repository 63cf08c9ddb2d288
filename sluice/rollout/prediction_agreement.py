"""Distance between the arms' predictions: on held-out rows before, on live requests now.

Two good models differ, and the held-out rows show by how much. When they differ several times as
much on live requests, the inputs are not as in training: another unit, another order of columns,
another normaliser.

Shape legend: N = rows, M = networks, O = outputs, C = clients.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.rollout.contribution_limits import capped_contributions
from sluice.rollout.samples import Outputs, Sample
from sluice.rollout.state import PredictionDrift

_MIN_SPREAD_SHARE = 0.05
"""Smallest unit of the distance, as a share of production's spread. Without it, a retrained copy
with almost equal predictions would have to stay almost equal on live requests."""

_MAX_CLIENT_FACTOR = 5
"""Upper bound of one client's distance, in limits: half the number of clients, at most this. So one
client alone proves nothing among three, nor does a fifth of many."""

_MAX_NETWORK_SHARE = 0.1
"""Largest share of one network when there are ten or more, whatever users it names [rate]."""

_MAX_PAIRS = 300
"""Newest pairs that are compared; older ones would hide a change."""


class PredictionAgreement(Record):
    """Distance between both models' predictions on the same held-out rows."""

    difference: float = Field(ge=0, description="Mean absolute difference of the predictions.")
    spread: float = Field(ge=0, description="Standard deviation of production's predictions.")
    rows: int = Field(ge=1)

    @property
    def unit(self) -> float:
        """Unit in which the distance on live requests is measured."""
        return max(self.difference, _MIN_SPREAD_SHARE * self.spread)


def measure_agreement(
    production_NO: NDArray[np.float64], challenger_NO: NDArray[np.float64]
) -> PredictionAgreement:
    """Compare the predictions (N, O) of both models on the same rows.

    Raises:
        ContractError: The shapes differ, or predictions are empty or not finite.
    """
    same = production_NO.shape == challenger_NO.shape and production_NO.size > 0
    if not same or not np.isfinite(production_NO).all() or not np.isfinite(challenger_NO).all():
        raise ContractError(
            "Both models must give finite predictions of one shape on the held-out rows, got "
            f"{production_NO.shape} and {challenger_NO.shape}.",
            fix="Evaluate both models on the same rows first.",
        )
    return PredictionAgreement(
        difference=float(np.abs(production_NO - challenger_NO).mean()),
        spread=float(production_NO.std(axis=0).mean()),
        rows=len(production_NO),
    )


def prediction_drift(
    samples: Sequence[Sample], agreement: PredictionAgreement, *, limit: float, min_pairs: int
) -> PredictionDrift:
    """Return the distance of the arms on live requests as a multiple of that on held-out rows.

    Args:
        samples: Samples of the rollout, oldest first; those that both arms answered are
            compared.
        agreement: Distance on the held-out rows.
        limit: Largest distance that is not a breach [x].
        min_pairs: With fewer pairs the distance is NaN (unknown).

    Each client contributes the mean over its pairs, up to a bound; the clients of one network
    together also contribute up to a bound.
    """
    pairs = [s for s in samples if s.production and s.challenger][-_MAX_PAIRS:]
    if len(pairs) < min_pairs:
        return PredictionDrift(distance=float("nan"), limit=limit, rows=len(pairs))
    unit = agreement.unit
    by_client: dict[str, list[float]] = {}
    origin_of: dict[str, str] = {}
    for number, pair in enumerate(pairs):
        live = float(np.abs(_mean_output(pair.production) - _mean_output(pair.challenger)).mean())
        ratio = live / unit if unit > 0 else (0.0 if live == 0 else math.inf)
        client = pair.client or f"{number}"
        by_client.setdefault(client, []).append(ratio)
        origin_of.setdefault(client, pair.origin or client)
    distance_C = np.array([np.mean(ratios) for ratios in by_client.values()])
    bound = limit * min(_MAX_CLIENT_FACTOR, max(2.0, distance_C.size / 2))
    contribution_C = capped_contributions(list(origin_of.values()), max_share=_MAX_NETWORK_SHARE)
    distance = float(np.average(np.minimum(distance_C, bound), weights=contribution_C))
    return PredictionDrift(distance=distance, limit=limit, rows=len(pairs))


def _mean_output(outputs: Outputs | None) -> NDArray[np.float64]:
    output: NDArray[np.float64] = np.mean(np.array(outputs, np.float64), axis=0)
    return output
