"""How far apart the arms' predictions are: on held-out rows before, on live requests now (ROLL-2).

Two good models differ, and how much is known from the held-out rows. When they differ several times
as much on the requests of users, something is not as it was in training: a unit, an order of
columns, a normaliser.

Shape legend: N = rows, M = networks, O = outputs, C = clients.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.rollout.parts import limited_parts
from sluice.rollout.samples import Outputs, Sample
from sluice.rollout.state import PredictionDrift

_LEAST_PART = 0.05
"""Of production's spread: models that agree better than that on held-out rows count as if they did
not, or a trained-again twin would be held to a difference of nearly zero."""

_MOST_TIMES = 5
"""One client's difference counts up to as many times the limit as there are halves of clients, and
up to so many times: so one alone proves nothing among three, nor a fifth among many."""

_MOST_OF_ORIGIN = 0.1
"""Of ten networks and more, one has at most such a part, whatever users it names [rate]."""

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

    Each client has one part, the mean over its pairs, which counts up to a bound; the clients of
    one network together count up to a bound, too.
    """
    pairs = [s for s in samples if s.production and s.challenger][-_NEWEST:]
    if len(pairs) < min_pairs:
        return PredictionDrift(distance=float("nan"), limit=limit, rows=len(pairs))
    unit = agreement.unit
    by_client: dict[str, list[float]] = {}
    origin_of: dict[str, str] = {}
    for number, pair in enumerate(pairs):
        live = float(np.abs(_answer(pair.production) - _answer(pair.challenger)).mean())
        far = live / unit if unit > 0 else (0.0 if live == 0 else math.inf)
        client = pair.client or f"{number}"
        by_client.setdefault(client, []).append(far)
        origin_of.setdefault(client, pair.origin or client)
    far_C = np.array([np.mean(far) for far in by_client.values()])
    most = limit * min(_MOST_TIMES, max(2.0, far_C.size / 2))
    part_C = limited_parts(list(origin_of.values()), most=_MOST_OF_ORIGIN)
    distance = float(np.average(np.minimum(far_C, most), weights=part_C))
    return PredictionDrift(distance=distance, limit=limit, rows=len(pairs))


def _answer(outputs: Outputs | None) -> NDArray[np.float64]:
    answer: NDArray[np.float64] = np.mean(np.array(outputs, np.float64), axis=0)
    return answer
