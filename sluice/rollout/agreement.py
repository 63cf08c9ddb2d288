"""How far apart the arms' predictions are: on held-out rows before, on live requests now (ROLL-2).

Two good models differ, and how much is known from the held-out rows. When they differ several times
as much on the requests of users, something is not as it was in training: a unit, an order of
columns, a normaliser.

Shape legend: N = rows, M = networks, O = outputs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.errors import ContractError
from sluice.rollout.samples import Sample
from sluice.rollout.state import PredictionDrift
from sluice.settings import Record

_LEAST_PART = 0.05
"""Of production's spread: models that agree better than that on held-out rows count as if they did
not, or a trained-again twin would be held to a difference of nearly zero."""

_NEWEST = 300
"""Pairs that a look compares: older ones would hide a change."""


class Agreement(Record):
    """Both models on the same held-out rows."""

    difference: float = Field(ge=0, description="Mean absolute difference of the predictions.")
    spread: float = Field(ge=0, description="Standard deviation of production's predictions.")
    rows: int = Field(ge=1)

    @property
    def unit(self) -> float:
        """What a live difference is measured in."""
        return max(self.difference, _LEAST_PART * self.spread)


def measure_agreement(
    production_NO: NDArray[np.float64], challenger_NO: NDArray[np.float64]
) -> Agreement:
    """Compare the answers (N, O) of both models on the same rows.

    Raises:
        ContractError: They are of other shapes, empty, or not finite.
    """
    same = production_NO.shape == challenger_NO.shape and production_NO.size > 0
    if not same or not np.isfinite(production_NO).all() or not np.isfinite(challenger_NO).all():
        raise ContractError(
            "Both models must give finite answers of one shape on the held-out rows, got "
            f"{production_NO.shape} and {challenger_NO.shape}.",
            fix="Evaluate both models on the same rows first.",
        )
    return Agreement(
        difference=float(np.abs(production_NO - challenger_NO).mean()),
        spread=float(production_NO.std(axis=0).mean()),
        rows=len(production_NO),
    )


def prediction_drift(
    samples: Sequence[Sample], agreement: Agreement, *, limit: float, min_pairs: int
) -> PredictionDrift:
    """Return how many times as far apart the arms are on live requests as on the held-out rows.

    Args:
        samples: Of the rollout, oldest first; those that both arms answered are compared.
        agreement: On the held-out rows.
        limit: Largest distance that is not a breach [x].
        min_pairs: With fewer the distance is NaN: not known.
    """
    pairs = [(s.production, s.challenger) for s in samples if s.production and s.challenger]
    pairs = pairs[-_NEWEST:]
    if len(pairs) < min_pairs:
        return PredictionDrift(distance=float("nan"), limit=limit, rows=len(pairs))
    live = float(np.mean([np.abs(np.mean(a, axis=0) - np.mean(b, axis=0)) for a, b in pairs]))
    unit = agreement.unit
    distance = live / unit if unit > 0 else (0.0 if live == 0 else float("inf"))
    return PredictionDrift(distance=distance, limit=limit, rows=len(pairs))
