import numpy as np
import pandas as pd
import pytest
from scipy import stats

from sluice.config.drift_settings import DriftSettings
from sluice.drift.columns import normal_scores, psi_bins, reference_column

SETTINGS = DriftSettings()


def column_of(values) -> object:
    return reference_column(pd.Series(values, name="x"), SETTINGS, 0.01)


def test_bins_join_neighbouring_cells_to_equal_shares():
    share_G = np.r_[0.0, np.full(50, 0.02), 0.0]

    joined = psi_bins(share_G, 10, is_ordered=True)

    assert np.bincount(joined, weights=share_G) == pytest.approx(np.full(10, 0.1))
    assert (np.diff(joined) >= 0).all()


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("share", [[1.0, 0.0], [0.0, 0.97, 0.0, 0.03, 0.0], [0.5, 0.0, 0.5]])
def test_every_bin_holds_some_of_the_reference(share, is_ordered):
    joined = psi_bins(np.array(share), 3, is_ordered=is_ordered)

    assert (np.bincount(joined, weights=share) > 0).all()


def test_rare_categories_share_the_last_bin():
    assert psi_bins(np.array([0.1, 0.5, 0.3, 0.1]), 3, is_ordered=False).tolist() == [2, 0, 1, 2]


def test_cells_score_as_a_normal_column_would():
    values = np.random.default_rng(0).lognormal(size=2000)
    column = column_of(values)

    score_N = normal_scores(column)[column.cells.encode(pd.Series(values))]

    assert stats.spearmanr(score_N, values)[0] > 0.999
    assert (score_N.mean(), score_N.std()) == pytest.approx((0, 1), abs=0.03)
    assert normal_scores(column)[0] == 0  # a missing value is in the middle


def test_positions_are_the_means_of_cells_in_standard_deviations():
    values = np.repeat([1.0, 2.0, 10.0], [50, 30, 20])

    position_G = column_of(values).position_G

    assert position_G[[1, 3, 5]] == pytest.approx(np.array([1, 2, 10]) / values.std())
    assert (np.diff(position_G) >= 0).all()


def test_the_share_of_categories_in_one_window_only_is_normal():
    values = ["every"] * 100 + ["once"] * 20 + ["every"] * 280

    column = column_of(values)

    assert column.max_new_category_share(100) == pytest.approx(0.2)
    assert column.max_new_category_share(10) == 0
    assert column_of(["a", "b"] * 200).max_new_category_share(100) == 0
