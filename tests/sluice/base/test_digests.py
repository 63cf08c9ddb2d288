"""Digests of bytes, JSON, data frames and files: equal if and only if the content is (DATA-4)."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sluice.base.digests import digest_bytes, digest_files, digest_frame, digest_json, short


def make_frame() -> pd.DataFrame:
    index = pd.date_range("2020-01-01", periods=3, name="date")
    return pd.DataFrame(
        {"price": [1.0, 2.5, np.nan], "volume": [1, 2, 3], "name": ["a", None, "c"]}, index=index
    )


def test_digest_of_bytes_is_their_sha256() -> None:
    assert digest_bytes(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert short(digest_bytes(b"abc")) == "ba7816bf8f01"


def test_digest_of_json_ignores_only_the_order_of_keys() -> None:
    assert digest_json({"a": [1, 2], "b": {"c": 1, "d": 2}}) == digest_json(
        {"b": {"d": 2, "c": 1}, "a": [1, 2]}
    )
    values = [{"a": [1, 2]}, {"a": [2, 1]}, {"a": ["1", 2]}, {"b": [1, 2]}, {"a": [1.5, 2]}, {}]
    assert len({digest_json(value) for value in values}) == len(values)


def test_frame_digest_is_stable_over_a_parquet_round_trip(tmp_path: Path) -> None:
    make_frame().to_parquet(tmp_path / "frame.parquet")

    assert digest_frame(pd.read_parquet(tmp_path / "frame.parquet")) == digest_frame(make_frame())
    assert digest_frame(make_frame().copy()) == digest_frame(make_frame())


@pytest.mark.parametrize(
    "change",
    [
        "value",
        "missing",
        "text",
        "order",
        "index",
        "index_name",
        "column",
        "dtype",
        "rows",
        "columns",
    ],
)
def test_frame_digest_depends_on_every_property(change: str) -> None:
    changed = make_frame()
    if change == "value":
        changed.loc[changed.index[0], "price"] = np.nextafter(1.0, 2.0)
    elif change == "missing":
        changed.loc[changed.index[2], "price"] = 0.0
    elif change == "text":
        changed.loc[changed.index[0], "name"] = "b"
    elif change == "order":
        changed = changed.iloc[::-1]
    elif change == "index":
        changed.index = changed.index + pd.Timedelta(1, "s")
    elif change == "index_name":
        changed.index.name = "time"
    elif change == "column":
        changed = changed.rename(columns={"price": "cost"})
    elif change == "dtype":
        changed["volume"] = changed["volume"].astype("float64")
    elif change == "rows":
        changed = changed.iloc[:2]
    else:
        changed = changed[["volume", "price", "name"]]

    assert digest_frame(changed) != digest_frame(make_frame())


def test_frame_digest_does_not_depend_on_memory_layout() -> None:
    contiguous = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=["a", "b", "c"])
    sliced = pd.DataFrame(np.arange(24.0).reshape(8, 3)[:4], columns=["a", "b", "c"])

    assert digest_frame(contiguous) == digest_frame(sliced)


def test_digest_of_files_depends_on_role_and_content(tmp_path: Path) -> None:
    file_a, file_b = tmp_path / "a", tmp_path / "b"
    file_a.write_bytes(b"1")
    file_b.write_bytes(b"2")

    assert digest_files({"x": file_a, "y": file_b}) == digest_files({"y": file_b, "x": file_a})
    assert digest_files({"x": file_a, "y": file_b}) != digest_files({"x": file_b, "y": file_a})
