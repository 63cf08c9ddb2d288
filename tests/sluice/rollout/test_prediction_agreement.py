"""ROLL-2: predictions that differ more on live requests than on the held-out rows."""

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


def pair(production: float | None, challenger: float | None) -> Sample:
    def said(value: float | None) -> tuple[tuple[float, ...], ...] | None:
        # Two networks whose mean is the answer.
        return None if value is None else ((value - 1,), (value + 1,))

    return Sample(
        at=NOON,
        rollout="r",
        epoch=2,
        arm="challenger",
        seconds=0.01,
        features=(0.0,),
        production=said(production),
        challenger=said(challenger),
    )


def test_the_difference_of_known_answers() -> None:
    found = measure_agreement(np.array([[0.0], [2.0]]), np.array([[1.0], [1.5]]))

    assert (found.difference, found.spread, found.rows) == (0.75, 1.0, 2)
    assert found.unit == 0.75


def test_equal_models_have_a_limit_above_zero() -> None:
    same = np.linspace(0, 10, 100)[:, None]
    agreement = measure_agreement(same, same + 1e-9)

    assert agreement.unit == pytest.approx(0.05 * same.std())


def test_the_distance_is_relative_to_the_held_out_difference() -> None:
    agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=100)
    near = [pair(float(i), i + 0.5) for i in range(20)]
    far = [pair(float(i), i - 3.0) for i in range(20)]

    assert measure_prediction_drift(
        near, agreement, limit=4, min_pairs=20
    ).distance == pytest.approx(1)
    found = measure_prediction_drift(far, agreement, limit=4, min_pairs=20)
    assert (found.distance, found.limit, found.rows) == (pytest.approx(6), 4, 20)


def test_only_the_newest_complete_pairs_count() -> None:
    agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=100)
    old = [pair(0.0, 0.0)] * 1000
    new = [pair(0.0, 5.0)] * 300
    halves = [pair(0.0, None), pair(None, 3.0)] * 50

    assert (
        measure_prediction_drift(old + new + halves, agreement, limit=4, min_pairs=9).distance == 10
    )
    few = measure_prediction_drift(new[:8] + halves, agreement, limit=4, min_pairs=9)
    assert math.isnan(few.distance)
    assert few.rows == 8


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (np.zeros((3, 1)), np.zeros((2, 1))),
        (np.zeros((0, 1)),) * 2,
        (np.ones((1, 1)), [[math.nan]]),
    ],
)
def test_predictions_that_cannot_be_compared_are_refused(
    theirs: np.ndarray, ours: np.ndarray
) -> None:
    with pytest.raises(ContractError, match="must be finite, not empty and of the same shape"):
        measure_agreement(np.array(theirs), np.array(ours))


def of_clients(hostile: int, honest: int, *, far: float, near: float = 0.5) -> list[Sample]:
    """Return pairs of clients of which some send what the arms answer most differently."""
    differences = [("bad", n, far) for n in range(hostile)] + [
        ("ok", n, near) for n in range(honest)
    ]
    return [
        pair(0.0, difference).model_copy(update={"client": f"{name} {number}"})
        for name, number, difference in differences
    ]


def test_one_client_alone_cannot_cause_drift() -> None:
    agreement = PredictionAgreement(difference=0.5, spread=1.0, rows=100)
    one = [pair(0.0, 1e18).model_copy(update={"client": "bad 0"})] * 200
    honest = of_clients(0, 30, far=0)

    def distance(samples: list[Sample]) -> float:
        return measure_prediction_drift(samples, agreement, limit=4, min_pairs=20).distance

    assert distance(one + honest) < 4, "200 of 230 pairs are of one client"
    assert distance(of_clients(3, 97, far=1e18)) < 4, "3 of 100 clients"
    assert distance(of_clients(0, 100, far=0, near=3.0)) == pytest.approx(6), "it is everybody's"
    assert distance(of_clients(20, 80, far=1e3)) > 4, "20 of 100 are no single client"
    assert distance(one) > 4, "there is no other client"
