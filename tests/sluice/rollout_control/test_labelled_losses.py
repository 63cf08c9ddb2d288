"""ROLL-2: which live rows count, and their losses."""

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
from tests.sluice.rollout_control.controller_samples import UNSEEN, WORKLOAD, echo_frame, sample


@pytest.fixture
def rollout() -> Rollout:
    return rollout_samples.rollout()


def said(rollout: Rollout, key: str, *challenger: float) -> Sample:
    """Production's two networks say 0 and 1."""
    return sample(
        rollout,
        key=key,
        challenger=tuple((value,) for value in challenger),
        production=((0.0,), (1.0,)),
    )


def test_losses_are_per_network_in_time_order(rollout: Rollout) -> None:
    frame = echo_frame()
    samples = [said(rollout, "510", 5.0, 7.0), said(rollout, "502", 1.0, 2.0)]

    tables = labelled_losses(rollout, samples, frame, WORKLOAD, first_unseen=UNSEEN)

    assert tables is not None
    ours, theirs = tables
    y = frame.loc[[502, 510], "echo"].to_numpy()
    assert ours.label_N.tolist() == ["502", "510"]
    assert ours.loss_SN == pytest.approx((np.array([[1, 5], [2, 7]]) - y) ** 2, rel=1e-5)
    assert theirs.loss_SN == pytest.approx((np.array([[0, 0], [1, 1]]) - y) ** 2, rel=1e-5)
    assert (ours.subject, theirs.subject) == (rollout.candidate, rollout.production)
    assert ours.window == theirs.window


def test_a_row_counts_once_and_only_with_both_predictions_and_its_label(rollout: Rollout) -> None:
    one_armed = said(rollout, "505", 1.0, 2.0).model_copy(update={"production": None})
    samples = [
        one_armed,
        said(rollout, "503", 1.0, 2.0),
        said(rollout, "503", 8.0, 9.0),  # the first answer counts
        said(rollout, "77777", 1.0, 2.0),  # its label has not arrived
        said(rollout, "506", 1.0, 2.0).model_copy(update={"key": None}),
        said(rollout, str(UNSEEN - 1), 1.0, 2.0),  # both have learned from it
        said(rollout, str(UNSEEN), 1.0, 2.0),
    ]

    tables = labelled_losses(rollout, samples, echo_frame(), WORKLOAD, first_unseen=UNSEEN)

    assert tables is not None
    assert tables[0].label_N.tolist() == [str(UNSEEN), "503"]
    assert tables[0].loss_SN[0, 1] == pytest.approx((1 - echo_frame()["echo"][503]) ** 2, rel=1e-5)
    nothing = labelled_losses(rollout, samples[:1], echo_frame(), WORKLOAD, first_unseen=UNSEEN)
    assert nothing is None


def test_a_date_needs_no_time_of_day_and_two_ways_to_write_it_are_one_row(
    rollout: Rollout,
) -> None:
    frame = echo_frame(600).set_axis(pd.date_range("2024-01-01", periods=600))
    samples = [said(rollout, key, 1.0, 2.0) for key in ("2025-06-01", "2025-06-01T00:00:00")]

    tables = labelled_losses(rollout, samples, frame, WORKLOAD, first_unseen=0)

    assert tables is not None
    assert tables[0].label_N.tolist() == ["2025-06-01T00:00:00"]


def test_the_training_range_ends_a_horizon_after_the_last_row(
    tmp_path: Path,
) -> None:
    both = sample_lineage(ArtifactStore(tmp_path)).members
    members = tuple(m.model_copy(update={"trained_through": "399"}) for m in both)
    older = members[0].model_copy(update={"trained_through": "200"})

    assert find_first_unseen(members, echo_frame(), horizon_rows=1) == UNSEEN
    assert find_first_unseen((older, *members), echo_frame(), horizon_rows=3) == UNSEEN + 2


def test_outputs_of_a_wrong_shape_are_refused(rollout: Rollout) -> None:
    ragged = [said(rollout, "503", 1.0), said(rollout, "504", 1.0, 2.0)]
    wide = sample(rollout, key="503", challenger=((1.0, 2.0),), production=((1.0, 2.0),))
    twice = pd.concat([echo_frame(600), echo_frame(600).iloc[-1:]])
    refusals: list[tuple[list[Sample], pd.DataFrame, str]] = [
        (ragged, echo_frame(), r"same number of networks and outputs of challenger, got \(1, 1\)"),
        ([wide], echo_frame(), r"workload's output shape \(1, 1\), got \(1, 2\)"),
        ([wide], twice, "two rows 599"),
    ]
    for samples, frame, why in refusals:
        with pytest.raises(ContractError, match=why):
            labelled_losses(rollout, samples, frame, WORKLOAD, first_unseen=UNSEEN)


def test_responses_that_are_not_the_output_have_their_own_losses(rollout: Rollout) -> None:
    class Signs(type(WORKLOAD)):  # type: ignore[misc]
        """Serves two numbers for one output."""

        def served_output(self, output: Tensor, x: ModelInput) -> Tensor:  # noqa: ARG002
            return torch.cat([output.sign(), output.abs()], dim=1)

        def served_losses(self, served: Tensor, y: Tensor) -> Tensor:
            return (served[:, 0] * served[:, 1] - y[:, 0]).abs()

    pair = sample(
        rollout, key="502", challenger=((1.0, 5.0), (-1.0, 2.0)), production=((1.0, 0.0),)
    )
    frame = echo_frame()

    tables = labelled_losses(rollout, [pair], frame, Signs(), first_unseen=UNSEEN)

    assert tables is not None
    y = frame["echo"][502]
    assert tables[0].loss_SN[:, 0] == pytest.approx([abs(5 - y), abs(-2 - y)], rel=1e-5)
    assert tables[1].loss_SN[:, 0] == pytest.approx([abs(y)], rel=1e-5)
