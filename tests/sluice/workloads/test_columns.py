"""Features of a raw column depend on its row alone, and on declared arguments."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.workloads.columns import Calendar, Category, Lag, Number, Text, as_labels


def features(column, values, **index):
    raw = pd.DataFrame({"c": values}, **index)
    found = column.compute(raw)
    assert tuple(found) == tuple(each.name for each in column.features)
    return {name: values.tolist() for name, values in found.items()}


def test_a_number_is_unchanged():
    assert features(Number("c"), [1, -2]) == {"c": [1.0, -2.0]}


def test_a_missing_number_is_filled_and_marked():
    column = Number("c", fill=7.0)

    assert features(column, [1.0, np.nan]) == {"c": [1.0, 7.0], "c_missing": [0.0, 1.0]}
    assert column.raw_column.nullable
    assert not Number("c").raw_column.nullable


def test_a_category_has_one_feature_per_value_and_none_for_others():
    column = Category("c", ("a", "b"), missing=True)

    assert features(column, ["b", None, "other"]) == {
        "c=a": [0.0, 0.0, 0.0],
        "c=b": [1.0, 0.0, 0.0],
        "c=missing": [0.0, 1.0, 0.0],
    }


def test_integers_with_gaps_have_the_labels_of_integers():
    assert as_labels(pd.Series([1.0, np.nan, 2.5, 3e7])).tolist()[::2] == ["1", "2.5"]
    assert as_labels(pd.Series([3e7]))[0] == "30000000"
    assert as_labels(pd.Series([7, None], dtype="Int64"))[0] == "7"
    assert as_labels(pd.Series([True, False])).tolist() == ["True", "False"]
    assert as_labels(pd.Series([1.0, np.nan])).isna().tolist() == [False, True]


def test_a_text_is_hashed_to_unit_length_whatever_the_other_rows_are():
    column = Text("c", width=16)
    alone = features(column, ["Good, good phone!"])
    beside = features(column, ["bad", "Good, good phone!"])

    assert [values[0] for values in alone.values()] == [values[1] for values in beside.values()]
    assert np.linalg.norm(list(alone.values())) == pytest.approx(1.0)
    assert sum(value != 0 for (value,) in alone.values()) == 2
    assert features(column, ["GOOD phone good"]) == alone


def test_a_missing_text_has_no_words():
    assert np.count_nonzero(list(features(Text("c", width=4), [None, ""]).values())) == 0


def test_pairs_distinguish_the_order_of_words():
    words = Text("c", width=64)
    pairs = Text("c", width=64, pairs=True)

    assert features(words, ["not good but bad"]) == features(words, ["not bad but good"])
    assert features(pairs, ["not good but bad"]) != features(pairs, ["not bad but good"])


def test_the_words_of_a_known_text_are_in_known_features():
    """The hash is part of a stored model: it must be the same on every machine."""
    found = features(Text("c", width=8), ["apple"])

    assert [name for name, (value,) in found.items() if value] == ["c_word0"]


def test_a_date_is_a_position_in_cycles():
    dates = pd.to_datetime(["2024-01-01 06:00", "2024-01-08 18:00"])
    found = features(Calendar("c", ("hour", "weekday")), dates)

    assert found["c_hour_sin"] == pytest.approx([1.0, -1.0])
    assert found["c_weekday_cos"] == [1.0, 1.0]  # both are Mondays


def test_a_calendar_may_read_the_index():
    raw = pd.DataFrame({"x": [1]}, index=pd.DatetimeIndex(["2024-01-02"], name="day"))

    found = Calendar("day", ("weekday",)).compute(raw)

    assert found["day_weekday_sin"] == pytest.approx([np.sin(2 * np.pi / 7)])


def test_a_lag_is_the_number_of_an_earlier_row():
    found = features(Lag("c", 2), [1.0, 2.0, 3.0])

    assert np.isnan(found["c_lag2"][:2]).all()
    assert found["c_lag2"][2] == 1.0


def test_a_lag_of_the_same_or_a_later_row_is_refused():
    with pytest.raises(ContractError, match="earlier row, got rows=0"):
        features(Lag("c", 0), [1.0])
