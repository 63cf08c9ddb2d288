"""Stable order of rows without time, independent of other rows (DATA-3, DATA-4)."""

import hashlib

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.data.hash_order import in_hash_order


def make_rows(num_rows: int = 300) -> pd.DataFrame:
    a, b = np.random.default_rng(0).normal(size=(2, num_rows))
    return pd.DataFrame({"a": a, "b": b, "label": np.arange(num_rows)})


def order_rows(frame: pd.DataFrame) -> pd.DataFrame:
    return in_hash_order(frame, ("a", "b"), name="key")


def test_rows_are_sorted_by_key_and_all_are_kept():
    result = order_rows(make_rows())

    assert result.index.is_monotonic_increasing
    assert result.index.is_unique
    assert (result.index.name, result.index.dtype) == ("key", np.int64)
    assert sorted(result["label"]) == list(range(300))


def test_order_does_not_depend_on_the_order_of_the_source():
    shuffled = make_rows().sample(frac=1, random_state=1)

    pd.testing.assert_frame_equal(order_rows(shuffled), order_rows(make_rows()))


def test_key_of_a_row_does_not_depend_on_other_rows():
    all_rows, every_third_row = order_rows(make_rows()), order_rows(make_rows().iloc[::3])

    assert all_rows.index[all_rows["label"].isin(every_third_row["label"])].equals(
        every_third_row.index
    )


def test_rows_that_differ_only_in_an_unlisted_column_have_equal_keys():
    with_duplicate = pd.concat([make_rows(), make_rows().assign(label=-1).iloc[[7]]])

    result = order_rows(with_duplicate)

    assert int(result.index.duplicated().sum()) == 1
    assert set(result.loc[result.index[result.index.duplicated()], "label"]) == {7, -1}


def test_order_is_uncorrelated_with_the_order_of_the_source():
    labels = order_rows(make_rows())["label"].to_numpy()

    assert abs(np.corrcoef(labels, np.arange(300))[0, 1]) < 0.2


def test_keys_are_exact_in_float64_and_below_the_label_limit():
    keys = order_rows(make_rows()).index.to_numpy()

    assert (keys.astype(np.float64).astype(np.int64) == keys).all()
    assert keys.min() >= 0
    assert keys.max() < 10**18


def test_negative_zero_and_zero_have_equal_keys():
    frame = pd.DataFrame({"a": [0.0, -0.0], "b": [1.0, 1.0], "label": [0, 1]})

    assert order_rows(frame).index.nunique() == 1


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ((), "; got no columns."),
        (("a", "c"), "; missing: c."),
        (
            ("a", "when", "gap", "c"),
            "; missing: c; of another type or with missing values: when, gap.",
        ),
    ],
)
def test_invalid_key_columns_are_rejected_with_their_names(columns, problem):
    frame = make_rows().assign(when=pd.Timestamp("2020-01-01"), gap=["x", None] * 150)

    with pytest.raises(ContractError, match=f"text columns without missing values{problem}"):
        in_hash_order(frame, columns, name="key")


def test_text_column_can_be_the_key():
    frame = pd.DataFrame({"path": ["a/1.png", "a/2.png", "b/1.png", "a/1.png"], "at": range(4)})

    result = in_hash_order(frame, ("path",), name="key")

    assert result.index.nunique() == 3
    assert set(result.loc[result.index[result.index.duplicated()], "at"]) == {0, 3}


def test_texts_of_two_columns_are_not_concatenated():
    frame = pd.DataFrame({"a": ["xy", "x"], "b": ["z", "yz"]})

    assert in_hash_order(frame, ("a", "b"), name="key").index.is_unique


def test_key_is_the_sha256_of_numbers_and_texts():
    frame = pd.DataFrame({"a": ["\u00e4"], "b": [2.0]})
    content = np.array([2.0], "<f8").tobytes() + (2).to_bytes(8, "little") + "\u00e4".encode()

    key = in_hash_order(frame, ("a", "b"), name="key").index[0]

    assert key == int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 11
