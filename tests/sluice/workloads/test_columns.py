"""Features computed from one raw column: numbers, categories, texts, dates and lags."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.workloads.columns import Calendar, Category, Lag, Number, Text, as_labels


def compute_features(column, values, **index):
    """Return the feature values of a raw column; their names must be those declared."""
    raw = pd.DataFrame({"c": values}, **index)
    result = column.compute(raw)
    assert tuple(result) == tuple(each.name for each in column.features)
    return {name: values.tolist() for name, values in result.items()}


def test_number_is_unchanged():
    assert compute_features(Number("c"), [1, -2]) == {"c": [1.0, -2.0]}


def test_missing_number_is_filled_and_flagged():
    column = Number("c", fill=7.0)

    assert compute_features(column, [1.0, np.nan]) == {"c": [1.0, 7.0], "c_missing": [0.0, 1.0]}
    assert column.raw_column.nullable
    assert not Number("c").raw_column.nullable


def test_category_is_one_hot_encoded_and_unknown_values_are_all_zero():
    column = Category("c", ("a", "b"), missing=True)

    assert compute_features(column, ["b", None, "other"]) == {
        "c=a": [0.0, 0.0, 0.0],
        "c=b": [1.0, 0.0, 0.0],
        "c=missing": [0.0, 1.0, 0.0],
    }


def test_integers_stored_as_floats_have_integer_labels():
    assert as_labels(pd.Series([1.0, np.nan, 2.5, 3e7])).tolist()[::2] == ["1", "2.5"]
    assert as_labels(pd.Series([3e7]))[0] == "30000000"
    assert as_labels(pd.Series([7, None], dtype="Int64"))[0] == "7"
    assert as_labels(pd.Series([True, False])).tolist() == ["True", "False"]
    assert as_labels(pd.Series([1.0, np.nan])).isna().tolist() == [False, True]
    assert as_labels(pd.Series([-0.0, 0.0])).tolist() == ["0", "0"]
    mixed = pd.Series([True, 1, 1.0, "1", None], dtype="object", index=range(5, 10), name="m")
    expected = pd.Series(["True", "1", "1", "1", None], index=mixed.index, name="m", dtype="str")
    pd.testing.assert_series_equal(as_labels(mixed), expected)
    dates = pd.Series(pd.to_datetime(["2024-01-31", None]))
    assert as_labels(dates).tolist()[0] == "2024-01-31 00:00:00"


def test_text_is_hashed_to_unit_norm_independently_of_other_rows():
    column = Text("c", width=16)
    alone = compute_features(column, ["Good, good phone!"])
    with_other_text = compute_features(column, ["bad", "Good, good phone!"])

    assert [values[0] for values in alone.values()] == [
        values[1] for values in with_other_text.values()
    ]
    assert np.linalg.norm(list(alone.values())) == pytest.approx(1.0)
    assert sum(value != 0 for (value,) in alone.values()) == 2
    assert compute_features(column, ["GOOD phone good"]) == alone


def test_missing_text_is_all_zero():
    assert np.count_nonzero(list(compute_features(Text("c", width=4), [None, ""]).values())) == 0


def test_word_pairs_encode_word_order():
    words = Text("c", width=64)
    pairs = Text("c", width=64, pairs=True)

    assert compute_features(words, ["not good but bad"]) == compute_features(
        words, ["not bad but good"]
    )
    assert compute_features(pairs, ["not good but bad"]) != compute_features(
        pairs, ["not bad but good"]
    )


def test_word_hash_is_the_same_on_every_machine():
    """A stored model depends on the hash, so the feature index of a word is pinned."""
    result = compute_features(Text("c", width=8), ["apple"])

    assert [name for name, (value,) in result.items() if value] == ["c_word0"]


def test_date_is_encoded_as_sine_and_cosine():
    dates = pd.to_datetime(["2024-01-01 06:00", "2024-01-08 18:00"])
    result = compute_features(Calendar("c", ("hour", "weekday")), dates)

    assert result["c_hour_sin"] == pytest.approx([1.0, -1.0])
    assert result["c_weekday_cos"] == [1.0, 1.0]  # both are Mondays


def test_calendar_can_read_the_index():
    raw = pd.DataFrame({"x": [1]}, index=pd.DatetimeIndex(["2024-01-02"], name="day"))

    result = Calendar("day", ("weekday",)).compute(raw)

    assert result["day_weekday_sin"] == pytest.approx([np.sin(2 * np.pi / 7)])


def test_lag_is_the_value_of_an_earlier_row():
    result = compute_features(Lag("c", 2), [1.0, 2.0, 3.0])

    assert np.isnan(result["c_lag2"][:2]).all()
    assert result["c_lag2"][2] == 1.0


def test_lag_below_one_row_is_rejected():
    with pytest.raises(ContractError, match="earlier row, got rows=0"):
        compute_features(Lag("c", 0), [1.0])
