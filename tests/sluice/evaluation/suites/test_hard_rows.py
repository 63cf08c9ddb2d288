"""The rows with the highest losses of a model become a suite with reasons (DATA-5)."""

import numpy as np
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.suites.hard_rows import hard_suite
from sluice.evaluation.suites.suite import HighestLoss
from tests.sluice.evaluation.suites.suite_samples import (
    FIRST_TEST,
    LABELS,
    make_flat_losses,
    make_frame,
    make_losses,
)


def select_hard_rows(loss_SN: np.ndarray, *, share: float = 0.025, **options):
    return hard_suite(
        "hard", make_losses(loss_SN, "model", **options), make_frame(), ("x",), share=share
    )


def test_rows_are_sorted_by_loss_and_list_their_unusual_features():
    loss_SN = make_flat_losses(3)
    loss_SN[:, [50 - FIRST_TEST, 90 - FIRST_TEST]] = [[20.0, 12.0]]

    suite = select_hard_rows(loss_SN)

    assert suite.labels == (LABELS[50], LABELS[90])
    assert suite.rows[0].reason.startswith("loss 20, 19.2 times the median; x 30 (+")
    assert suite.rows[1].reason == "loss 12, 11.5 times the median; no unusual features"


@pytest.mark.parametrize(("num_seeds", "chosen_by"), [(8, (0, 1, 2, 3)), (5, (0, 1, 2)), (1, (0,))])
def test_only_half_of_the_seeds_select_the_rows(num_seeds, chosen_by):
    loss_SN = make_flat_losses(num_seeds)
    loss_SN[: len(chosen_by), 7] = 50.0
    loss_SN[len(chosen_by) :, 9] = 500.0

    suite = select_hard_rows(loss_SN, share=0.0125)

    assert suite.labels == (LABELS[FIRST_TEST + 7],)
    assert suite.origin == HighestLoss(
        subject="model", window="window", share=0.0125, chosen_by=chosen_by
    )


def test_a_rule_without_seeds_selects_by_its_own_losses():
    suite = select_hard_rows(make_flat_losses(1), seeds=(), share=0.05)

    assert suite.origin.chosen_by == ()
    assert suite.labels == tuple(LABELS[[119, 118, 117, 116]])


def test_a_larger_share_keeps_the_rows_of_a_smaller_share():
    loss_SN = np.random.default_rng(1).exponential(size=(4, 80))
    suites = [set(select_hard_rows(loss_SN, share=share).labels) for share in (0.02, 0.1, 0.3)]

    assert [len(labels) for labels in suites] == [1, 8, 24]
    assert suites[0] < suites[1] < suites[2]


def test_rows_that_are_no_longer_in_the_data_are_excluded():
    loss_SN = make_flat_losses(2)
    loss_SN[:, 0] = 99.0
    table = make_losses(loss_SN, "model")

    suite = hard_suite("hard", table, make_frame().iloc[60:], ("x",), share=0.02)

    assert suite.labels == (LABELS[119],)
    with pytest.raises(ContractError, match="got none of 80"):
        hard_suite("hard", table, make_frame().iloc[:30], ("x",), share=0.02)


def test_a_diverged_seed_is_reported():
    loss_SN = make_flat_losses(3)
    loss_SN[2, 5] = np.nan

    with pytest.raises(ContractError, match=r"1 row with non-finite.*seeds: 2"):
        select_hard_rows(loss_SN)
