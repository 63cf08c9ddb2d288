"""DATA-3, DATA-4: a stable order for rows without time, independent of other rows."""

import hashlib

import numpy as np
import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.data.hash_order import in_hash_order


def rows(num_rows: int = 300) -> pd.DataFrame:
    a, b = np.random.default_rng(0).normal(size=(2, num_rows))
    return pd.DataFrame({"a": a, "b": b, "label": np.arange(num_rows)})


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    return in_hash_order(frame, ("a", "b"), name="key")


def test_rows_are_in_the_order_of_their_keys_and_none_is_lost():
    found = ordered(rows())

    assert found.index.is_monotonic_increasing
    assert found.index.is_unique
    assert (found.index.name, found.index.dtype) == ("key", np.int64)
    assert sorted(found["label"]) == list(range(300))


def test_the_order_is_the_same_whatever_order_the_source_had():
    shuffled = rows().sample(frac=1, random_state=1)

    pd.testing.assert_frame_equal(ordered(shuffled), ordered(rows()))


def test_a_row_keeps_its_key_when_others_come_and_go():
    whole, part = ordered(rows()), ordered(rows().iloc[::3])

    assert whole.index[whole["label"].isin(part["label"])].equals(part.index)


def test_the_label_does_not_enter_so_equal_rows_with_two_labels_collide():
    twice = pd.concat([rows(), rows().assign(label=-1).iloc[[7]]])

    found = ordered(twice)

    assert int(found.index.duplicated().sum()) == 1
    assert set(found.loc[found.index[found.index.duplicated()], "label"]) == {7, -1}


def test_the_order_looks_random():
    labels = ordered(rows())["label"].to_numpy()

    assert abs(np.corrcoef(labels, np.arange(300))[0, 1]) < 0.2


def test_keys_are_exact_in_floating_point_and_fit_a_loss_tables_label():
    keys = ordered(rows()).index.to_numpy()

    assert (keys.astype(np.float64).astype(np.int64) == keys).all()
    assert keys.min() >= 0
    assert keys.max() < 10**18


def test_minus_zero_is_zero():
    frame = pd.DataFrame({"a": [0.0, -0.0], "b": [1.0, 1.0], "label": [0, 1]})

    assert ordered(frame).index.nunique() == 1


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
def test_columns_that_make_no_key_are_rejected(columns, problem):
    frame = rows().assign(when=pd.Timestamp("2020-01-01"), gap=["x", None] * 150)

    with pytest.raises(ContractError, match=f"text columns without missing values{problem}"):
        in_hash_order(frame, columns, name="key")


def test_texts_identify_rows():
    frame = pd.DataFrame({"path": ["a/1.png", "a/2.png", "b/1.png", "a/1.png"], "at": range(4)})

    found = in_hash_order(frame, ("path",), name="key")

    assert found.index.nunique() == 3
    assert set(found.loc[found.index[found.index.duplicated()], "at"]) == {0, 3}


def test_texts_of_two_columns_are_kept_apart():
    frame = pd.DataFrame({"a": ["xy", "x"], "b": ["z", "yz"]})

    assert in_hash_order(frame, ("a", "b"), name="key").index.is_unique


def test_a_key_of_text_and_numbers_is_the_hash_of_both():
    frame = pd.DataFrame({"a": ["\u00e4"], "b": [2.0]})
    content = np.array([2.0], "<f8").tobytes() + (2).to_bytes(8, "little") + "\u00e4".encode()

    key = in_hash_order(frame, ("a", "b"), name="key").index[0]

    assert key == int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 11
