"""Numeric and categorical columns are binned into cells."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.drift.binning import (
    CategoryCells,
    bin_categories,
    bin_numbers,
    column_kind,
    count_filled,
)


def shares(values: pd.Series, num_cells: int) -> np.ndarray:
    cells = bin_numbers(values, num_cells)
    return np.bincount(cells.encode(values), minlength=cells.num_cells + 1) / len(values)


def test_cells_of_a_continuous_column_have_equal_shares_and_empty_outer_cells():
    share = shares(pd.Series(np.random.default_rng(0).normal(size=1000)), 50)

    assert share[0] == share[1] == share[-1] == 0
    assert share[2:-1] == pytest.approx(np.full(50, 0.02))


def test_few_distinct_values_have_one_cell_each_and_one_between_neighbours():
    cells = bin_numbers(pd.Series([0, 1, 1, 5]), 10)

    codes = cells.encode(pd.Series([-1, 0, 0.5, 1, 3, 5, 6])).tolist()

    assert codes == [1, 2, 3, 4, 5, 6, 7]


def test_a_frequent_value_has_its_own_cell():
    rng = np.random.default_rng(0)
    values = pd.Series(np.where(rng.random(1000) < 0.3, 0.0, rng.normal(size=1000)))

    cells = bin_numbers(values, 20)
    zero = cells.encode(pd.Series([0.0]))[0]

    assert (cells.encode(values) == zero).sum() == (values == 0).sum()


@pytest.mark.parametrize("num_cells", [4, 20])
def test_values_rounded_to_float32_stay_in_their_cells(num_cells):
    """Requests are float32, for example a rating of 0.1, or the sine and cosine of a weekday."""
    day = np.arange(1400) % 7
    repeated = [day * 0.1 + 0.1, np.sin(2 * np.pi * day / 7), np.cos(2 * np.pi * day / 7)]

    for values in map(pd.Series, repeated):
        cells = bin_numbers(values, num_cells)
        rounded = values.astype(np.float32)
        assert cells.encode(rounded).tolist() == cells.encode(values).tolist()
        assert cells.encode(values).min() > 1


def test_missing_and_infinite_numbers_have_code_zero():
    cells = bin_numbers(pd.Series(np.arange(100.0)), 10)

    codes = cells.encode(pd.Series([np.nan, np.inf, -np.inf, 5.0]))

    assert codes[:3].tolist() == [0, 0, 0]
    assert codes[3] > 0
    assert cells.encode(pd.Series([None, 3], dtype="Int64"))[0] == 0


def test_values_outside_the_range_fall_into_the_outer_cells():
    cells = bin_numbers(pd.Series(np.arange(100.0)), 10)

    low, first, last, high = cells.encode(pd.Series([-0.001, 0.0, 99.0, 99.001]))

    assert low == 1
    assert first == 2
    assert (last, high) == (cells.num_cells - 1, cells.num_cells)


def test_frequent_categories_have_cells_and_the_rest_share_one():
    cells = bin_categories(pd.Series([*"aaabbbbcd", None]), 2)

    assert cells.categories == ("b", "a", "c", "d")
    codes = cells.encode(pd.Series(["b", "a", "c", "d", "new", None]))
    assert codes.tolist() == [1, 2, 3, 3, 4, 0]
    assert cells.count_unseen(pd.Series(["x", "a", "x", None])) == {"x": 2}


def test_values_with_equal_text_are_one_category():
    cells = bin_categories(pd.Series([1, "1", "b", None], dtype=object), 9)

    assert cells.categories == ("1", "b")
    assert cells.encode(pd.Series(["1", "b", None])).tolist() == [1, 2, 0]


def test_categories_of_a_column_do_not_depend_on_the_order_of_its_rows():
    values = pd.Series(list("aabbcc"))

    assert bin_categories(values, 9).categories == bin_categories(values[::-1], 9).categories


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "numeric"),
        ([1.5, None], "numeric"),
        ([True, False], "category"),
        (["a", None], "category"),
        (pd.Categorical([1, 2]), "category"),
    ],
)
def test_a_column_is_numeric_or_categorical_by_its_dtype(values, kind):
    assert column_kind(pd.Series(values)) == kind


@pytest.mark.parametrize("values", [pd.date_range("2020", periods=2), [1j, 2j]])
def test_a_column_of_another_dtype_is_refused_by_name(values):
    with pytest.raises(ContractError, match="requires numbers or categories, but column 'when'"):
        column_kind(pd.Series(values, name="when"))


def test_only_finite_numbers_count_as_present():
    assert count_filled(pd.Series([1.0, np.nan, np.inf])) == 1
    assert count_filled(pd.Series(["a", None])) == 1


def test_integer_categories_are_encoded_by_their_text():
    cells = CategoryCells(categories=("1", "2"), num_frequent=2)

    assert cells.encode(pd.Series(pd.Categorical([1, 2, 3]))).tolist() == [1, 2, 4]
