"""Losses of labelled live rows, and which rows are counted (ROLL-2)."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.data.rows.protocol import ModelInput
from sluice.rollout.samples import Sample
from sluice.rollout.state import Rollout
from sluice.rollout_control.labelled_losses import find_first_unseen, labelled_losses
from tests.sluice.registry.ledger_samples import sample_lineage
from tests.sluice.rollout import rollout_samples
from tests.sluice.rollout_control.controller_samples import (
    FIRST_UNSEEN_ROW,
    WORKLOAD,
    echo_frame,
    make_sample,
)


@pytest.fixture
def rollout() -> Rollout:
    return rollout_samples.make_rollout()


def make_two_network_sample(rollout: Rollout, key: str, *challenger: float) -> Sample:
    """Return a sample; the two networks of production predict 0 and 1."""
    return make_sample(
        rollout,
        key=key,
        challenger=tuple((value,) for value in challenger),
        production=((0.0,), (1.0,)),
    )


def test_losses_are_per_network_in_time_order(rollout: Rollout) -> None:
    frame = echo_frame()
    samples = [
        make_two_network_sample(rollout, "510", 5.0, 7.0),
        make_two_network_sample(rollout, "502", 1.0, 2.0),
    ]

    tables = labelled_losses(
        rollout, samples, frame, WORKLOAD, first_unseen_position=FIRST_UNSEEN_ROW
    )

    assert tables is not None
    challenger, production = tables
    y = frame.loc[[502, 510], "echo"].to_numpy()
    assert challenger.label_N.tolist() == ["502", "510"]
    assert challenger.loss_SN == pytest.approx((np.array([[1, 5], [2, 7]]) - y) ** 2, rel=1e-5)
    assert production.loss_SN == pytest.approx((np.array([[0, 0], [1, 1]]) - y) ** 2, rel=1e-5)
    assert (challenger.subject, production.subject) == (rollout.candidate, rollout.production)
    assert challenger.window == production.window


def test_row_counts_once_and_only_unseen_with_both_predictions_and_label(rollout: Rollout) -> None:
    without_production = make_two_network_sample(rollout, "505", 1.0, 2.0).model_copy(
        update={"production": None}
    )
    samples = [
        without_production,
        make_two_network_sample(rollout, "503", 1.0, 2.0),
        make_two_network_sample(rollout, "503", 8.0, 9.0),  # the first sample of a row counts
        make_two_network_sample(rollout, "77777", 1.0, 2.0),  # its label has not arrived
        make_two_network_sample(rollout, "506", 1.0, 2.0).model_copy(update={"key": None}),
        # Both versions were trained with this row.
        make_two_network_sample(rollout, str(FIRST_UNSEEN_ROW - 1), 1.0, 2.0),
        make_two_network_sample(rollout, str(FIRST_UNSEEN_ROW), 1.0, 2.0),
    ]

    tables = labelled_losses(
        rollout, samples, echo_frame(), WORKLOAD, first_unseen_position=FIRST_UNSEEN_ROW
    )

    assert tables is not None
    assert tables[0].label_N.tolist() == [str(FIRST_UNSEEN_ROW), "503"]
    assert tables[0].loss_SN[0, 1] == pytest.approx((1 - echo_frame()["echo"][503]) ** 2, rel=1e-5)
    no_tables = labelled_losses(
        rollout, samples[:1], echo_frame(), WORKLOAD, first_unseen_position=FIRST_UNSEEN_ROW
    )
    assert no_tables is None


def test_date_with_and_without_time_of_day_is_the_same_row(
    rollout: Rollout,
) -> None:
    frame = echo_frame(600).set_axis(pd.date_range("2024-01-01", periods=600))
    samples = [
        make_two_network_sample(rollout, key, 1.0, 2.0)
        for key in ("2025-06-01", "2025-06-01T00:00:00")
    ]

    tables = labelled_losses(rollout, samples, frame, WORKLOAD, first_unseen_position=0)

    assert tables is not None
    assert tables[0].label_N.tolist() == ["2025-06-01T00:00:00"]


def test_first_unseen_row_is_a_horizon_after_the_last_training_row(
    tmp_path: Path,
) -> None:
    trained_members = sample_lineage(ArtifactStore(tmp_path)).members
    members = tuple(m.model_copy(update={"trained_through": "399"}) for m in trained_members)
    older = members[0].model_copy(update={"trained_through": "200"})

    assert find_first_unseen(members, echo_frame(), horizon_rows=1) == FIRST_UNSEEN_ROW
    assert (
        find_first_unseen((older, *members), echo_frame(), horizon_rows=3) == FIRST_UNSEEN_ROW + 2
    )


def test_unequal_shapes_and_duplicate_rows_are_rejected(rollout: Rollout) -> None:
    unequal_networks = [
        make_two_network_sample(rollout, "503", 1.0),
        make_two_network_sample(rollout, "504", 1.0, 2.0),
    ]
    two_outputs = make_sample(
        rollout, key="503", challenger=((1.0, 2.0),), production=((1.0, 2.0),)
    )
    duplicate_row = pd.concat([echo_frame(600), echo_frame(600).iloc[-1:]])
    refusals: list[tuple[list[Sample], pd.DataFrame, str]] = [
        (
            unequal_networks,
            echo_frame(),
            r"challenger must have the same shape \(networks, outputs\), got \(1, 1\)",
        ),
        ([two_outputs], echo_frame(), r"workload's output shape \(1, 1\), got \(1, 2\)"),
        ([two_outputs], duplicate_row, "two rows with the label 599"),
    ]
    for samples, frame, message in refusals:
        with pytest.raises(ContractError, match=message):
            labelled_losses(
                rollout, samples, frame, WORKLOAD, first_unseen_position=FIRST_UNSEEN_ROW
            )


def test_losses_are_computed_by_served_losses_of_the_workload(rollout: Rollout) -> None:
    class Signs(type(WORKLOAD)):  # type: ignore[misc]
        """Workload that serves sign and absolute value of the output."""

        def served_output(self, output: Tensor, x: ModelInput) -> Tensor:  # noqa: ARG002
            return torch.cat([output.sign(), output.abs()], dim=1)

        def served_losses(self, served: Tensor, y: Tensor) -> Tensor:
            return (served[:, 0] * served[:, 1] - y[:, 0]).abs()

    pair = make_sample(
        rollout, key="502", challenger=((1.0, 5.0), (-1.0, 2.0)), production=((1.0, 0.0),)
    )
    frame = echo_frame()

    tables = labelled_losses(
        rollout, [pair], frame, Signs(), first_unseen_position=FIRST_UNSEEN_ROW
    )

    assert tables is not None
    y = frame["echo"][502]
    assert tables[0].loss_SN[:, 0] == pytest.approx([abs(5 - y), abs(-2 - y)], rel=1e-5)
    assert tables[1].loss_SN[:, 0] == pytest.approx([abs(y)], rel=1e-5)
