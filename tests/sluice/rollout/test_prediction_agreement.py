"""Prediction drift: the arms differ more on live requests than on held-out rows (ROLL-2)."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.rollout.prediction_agreement import (
    PredictionAgreement,
    measure_agreement,
    measure_prediction_drift,
)
from sluice.rollout.samples import Sample

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)


def make_pair(production: float | None, challenger: float | None) -> Sample:
    def network_predictions(value: float | None) -> tuple[tuple[float, ...], ...] | None:
        # Two networks whose mean is the prediction.
        return None if value is None else ((value - 1,), (value + 1,))

    return Sample(
        at=NOON,
        rollout="r",
        epoch=2,
        arm="challenger",
        seconds=0.01,
        features=(0.0,),
        production=network_predictions(production),
        challenger=network_predictions(challenger),
    )


def test_agreement_of_known_predictions_is_computed() -> None:
    measured = measure_agreement(np.array([[0.0], [2.0]]), np.array([[1.0], [1.5]]))

    assert (measured.difference, measured.spread, measured.rows) == (0.75, 1.0, 2)
    assert measured.unit == 0.75


def test_unit_of_nearly_equal_models_is_5_percent_of_the_spread() -> None:
    same = np.linspace(0, 10, 100)[:, None]
    agreement = measure_agreement(same, same + 1e-9)

    assert agreement.unit == pytest.approx(0.05 * same.std())


def test_drift_distance_is_relative_to_the_held_out_difference() -> None:
    agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=100)
    near = [make_pair(float(i), i + 0.5) for i in range(20)]
    far = [make_pair(float(i), i - 3.0) for i in range(20)]

    assert measure_prediction_drift(
        near, agreement, limit=4, min_pairs=20
    ).distance == pytest.approx(1)
    drift = measure_prediction_drift(far, agreement, limit=4, min_pairs=20)
    assert (drift.distance, drift.limit, drift.rows) == (pytest.approx(6), 4, 20)


def test_only_the_newest_complete_pairs_count_and_too_few_give_nan() -> None:
    agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=100)
    old = [make_pair(0.0, 0.0)] * 1000
    new = [make_pair(0.0, 5.0)] * 300
    incomplete = [make_pair(0.0, None), make_pair(None, 3.0)] * 50

    assert (
        measure_prediction_drift(old + new + incomplete, agreement, limit=4, min_pairs=9).distance
        == 10
    )
    too_few = measure_prediction_drift(new[:8] + incomplete, agreement, limit=4, min_pairs=9)
    assert math.isnan(too_few.distance)
    assert too_few.rows == 8


@pytest.mark.parametrize(
    ("production", "challenger"),
    [
        (np.zeros((3, 1)), np.zeros((2, 1))),
        (np.zeros((0, 1)),) * 2,
        (np.ones((1, 1)), [[math.nan]]),
    ],
)
def test_predictions_of_unequal_shape_empty_or_not_finite_are_rejected(
    production: np.ndarray, challenger: np.ndarray
) -> None:
    with pytest.raises(ContractError, match="must be finite, not empty and of the same shape"):
        measure_agreement(np.array(production), np.array(challenger))


def make_pairs_of_clients(
    hostile: int, honest: int, *, far: float, near: float = 0.5
) -> list[Sample]:
    """Return one pair per client; the arms differ by ``far`` for hostile clients, else ``near``."""
    differences = [("bad", n, far) for n in range(hostile)] + [
        ("ok", n, near) for n in range(honest)
    ]
    return [
        make_pair(0.0, difference).model_copy(update={"client": f"{name} {number}"})
        for name, number, difference in differences
    ]


def test_drift_needs_several_clients() -> None:
    agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=100)
    one = [make_pair(0.0, 1e18).model_copy(update={"client": "bad 0"})] * 200
    honest = make_pairs_of_clients(0, 30, far=0)

    def distance(samples: list[Sample]) -> float:
        return measure_prediction_drift(samples, agreement, limit=4, min_pairs=20).distance

    assert distance(one + honest) < 4, "200 of 230 pairs are of one client"
    assert distance(make_pairs_of_clients(3, 97, far=1e18)) < 4, "3 of 100 clients"
    assert distance(make_pairs_of_clients(0, 100, far=0, near=3.0)) == pytest.approx(6), (
        "all clients have the same difference"
    )
    assert distance(make_pairs_of_clients(20, 80, far=1e3)) > 4, "20 of 100 clients differ"
    assert distance(one) > 4, "there is no other client"
