"""The rows with the highest loss are listed with their unusual features."""

import math

import numpy as np
import pandas as pd
import pytest

from sluice.findings.hard_examples import find_hard_examples

DAYS = pd.date_range("2020-01-01", periods=200, freq="D")


@pytest.fixture
def frame():
    values = np.random.default_rng(0).normal(size=(200, 4))
    table = pd.DataFrame(values, columns=list("abcd"), index=DAYS).assign(word="x", flag=0.0)
    table.iloc[[50, 120], 1] = [90.0, -40.0]
    table.iloc[120, [0, 2, 3]] = [11.0, 12.0, 13.0]
    table.iloc[120, 5] = 1.0
    return table


@pytest.fixture
def loss():
    values = np.full(150, 2.0)
    values[[0, 70]] = [30.0, 50.0]
    return values


ROWS = np.arange(50, 200)


def test_the_rows_with_the_highest_loss_are_listed_with_their_unusual_features(frame, loss):
    first, second = find_hard_examples(loss, ROWS, frame, tuple("abcd"), count=2)

    assert (first.row, first.loss, first.times_median) == (str(DAYS[120].date()), 50.0, 25.0)
    assert [s.feature for s in first.unusual_features] == ["b", "d", "c"]
    assert first.unusual_features[0].value == -40
    assert first.unusual_features[0].deviations < -20
    assert second.row == str(DAYS[50].date())
    assert second.unusual_features[0].feature == "b"


def test_deviations_are_in_standard_deviations_of_a_normal_variable(frame, loss):
    example = find_hard_examples(loss, ROWS, frame, ("a",), count=1)[0]

    assert example.unusual_features[0].deviations == pytest.approx(11, rel=0.25)


def test_text_columns_missing_columns_and_missing_cells_are_skipped(frame, loss):
    frame.iloc[120, 3] = np.nan

    example = find_hard_examples(loss, ROWS, frame, ("word", "gone", "d", "flag"), count=1)[0]

    assert [s.feature for s in example.unusual_features] == ["flag"]


def test_constant_and_empty_columns_are_never_unusual(frame, loss):
    frame = frame.assign(same=3.0, empty=np.nan)

    assert (
        find_hard_examples(loss, ROWS, frame, ("same", "empty"), count=1)[0].unusual_features == ()
    )


def test_nonfinite_losses_are_excluded_and_ties_keep_row_order(frame, loss):
    loss[[3, 4]] = [np.nan, np.inf]

    examples = find_hard_examples(loss, ROWS, frame, ("a",), count=4)

    assert [example.row for example in examples] == [str(DAYS[i].date()) for i in (120, 50, 51, 52)]
    assert find_hard_examples(np.full(150, np.nan), ROWS, frame, ("a",), count=4) == ()


def test_a_non_positive_median_gives_no_ratio(frame):
    assert math.isnan(
        find_hard_examples(-np.ones(150), ROWS, frame, ("a",), count=1)[0].times_median
    )


@pytest.mark.parametrize(("count", "listed"), [(0, 0), (3, 3), (1000, 150)])
def test_at_most_the_available_rows_are_listed(frame, loss, count, listed):
    assert len(find_hard_examples(loss, ROWS, frame, ("a",), count=count)) == listed


def test_an_ordinary_value_of_a_one_hot_column_is_not_unusual(frame, loss):
    friday = (DAYS.day_of_week == 4).astype(float)  # 1 on a seventh of the rows
    frame = frame.assign(friday=friday)
    row = int(np.flatnonzero(friday)[10])
    loss[row - 50] = 90.0

    examples = find_hard_examples(loss, ROWS, frame, ("friday", "flag"), count=2)

    assert [s.feature for s in examples[0].unusual_features] == []
    assert [s.feature for s in examples[1].unusual_features] == ["flag"]  # 1 on one row of 150


def test_examples_are_described_by_the_display_column(frame, loss):
    frame["path"] = [f"photos/{row}.png" for row in range(200)]

    examples = find_hard_examples(loss, ROWS, frame, ("a",), count=2, display_column="path")

    assert [example.description for example in examples] == ["photos/120.png", "photos/50.png"]
