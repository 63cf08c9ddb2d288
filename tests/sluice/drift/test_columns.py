"""PSI bins, normal scores and new categories of a reference column."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sluice.config.drift_settings import DriftSettings
from sluice.drift.columns import normal_scores, psi_bins, reference_column

SETTINGS = DriftSettings()


def make_column(values) -> object:
    return reference_column(pd.Series(values, name="x"), SETTINGS, 0.01)


def test_bins_join_neighbouring_cells_to_equal_shares():
    share_G = np.r_[0.0, np.full(50, 0.02), 0.0]

    bins = psi_bins(share_G, 10, is_ordered=True)

    assert np.bincount(bins, weights=share_G) == pytest.approx(np.full(10, 0.1))
    assert (np.diff(bins) >= 0).all()


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("share", [[1.0, 0.0], [0.0, 0.97, 0.0, 0.03, 0.0], [0.5, 0.0, 0.5]])
def test_every_bin_contains_reference_rows(share, is_ordered):
    bins = psi_bins(np.array(share), 3, is_ordered=is_ordered)

    assert (np.bincount(bins, weights=share) > 0).all()


def test_rare_categories_share_the_last_bin():
    assert psi_bins(np.array([0.1, 0.5, 0.3, 0.1]), 3, is_ordered=False).tolist() == [2, 0, 1, 2]


def test_normal_scores_are_standard_normal_and_monotone():
    values = np.random.default_rng(0).lognormal(size=2000)
    column = make_column(values)

    score_N = normal_scores(column)[column.cells.encode(pd.Series(values))]

    assert stats.spearmanr(score_N, values)[0] > 0.999
    assert (score_N.mean(), score_N.std()) == pytest.approx((0, 1), abs=0.03)
    assert normal_scores(column)[0] == 0  # missing values get the mean score


def test_positions_are_cell_means_in_units_of_the_standard_deviation():
    values = np.repeat([1.0, 2.0, 10.0], [50, 30, 20])

    position_G = make_column(values).position_G

    assert position_G[[1, 3, 5]] == pytest.approx(np.array([1, 2, 10]) / values.std())
    assert (np.diff(position_G) >= 0).all()


def test_the_normal_share_of_new_categories_is_the_maximum_over_reference_windows():
    values = ["every"] * 100 + ["once"] * 20 + ["every"] * 280

    column = make_column(values)

    assert column.max_new_category_share(100) == pytest.approx(0.2)
    assert column.max_new_category_share(10) == 0
    assert make_column(["a", "b"] * 200).max_new_category_share(100) == 0
