"""DATA-4: equal content has an equal digest; any change gives another digest."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sluice.base.digests import digest_bytes, digest_files, digest_frame, digest_json, short


def frame() -> pd.DataFrame:
    index = pd.date_range("2020-01-01", periods=3, name="date")
    return pd.DataFrame(
        {"price": [1.0, 2.5, np.nan], "volume": [1, 2, 3], "name": ["a", None, "c"]}, index=index
    )


def test_bytes_against_the_standard_library() -> None:
    assert digest_bytes(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert short(digest_bytes(b"abc")) == "ba7816bf8f01"


def test_json_ignores_key_order_only() -> None:
    assert digest_json({"a": [1, 2], "b": {"c": 1, "d": 2}}) == digest_json(
        {"b": {"d": 2, "c": 1}, "a": [1, 2]}
    )
    values = [{"a": [1, 2]}, {"a": [2, 1]}, {"a": ["1", 2]}, {"b": [1, 2]}, {"a": [1.5, 2]}, {}]
    assert len({digest_json(value) for value in values}) == len(values)


def test_frame_digest_is_stable_over_a_parquet_round_trip(tmp_path: Path) -> None:
    frame().to_parquet(tmp_path / "frame.parquet")

    assert digest_frame(pd.read_parquet(tmp_path / "frame.parquet")) == digest_frame(frame())
    assert digest_frame(frame().copy()) == digest_frame(frame())


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
def test_every_change_changes_the_frame_digest(change: str) -> None:
    other = frame()
    if change == "value":
        other.loc[other.index[0], "price"] = np.nextafter(1.0, 2.0)
    elif change == "missing":
        other.loc[other.index[2], "price"] = 0.0
    elif change == "text":
        other.loc[other.index[0], "name"] = "b"
    elif change == "order":
        other = other.iloc[::-1]
    elif change == "index":
        other.index = other.index + pd.Timedelta(1, "s")
    elif change == "index_name":
        other.index.name = "time"
    elif change == "column":
        other = other.rename(columns={"price": "cost"})
    elif change == "dtype":
        other["volume"] = other["volume"].astype("float64")
    elif change == "rows":
        other = other.iloc[:2]
    else:
        other = other[["volume", "price", "name"]]

    assert digest_frame(other) != digest_frame(frame())


def test_memory_layout_does_not_matter() -> None:
    wide = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=["a", "b", "c"])
    strided = pd.DataFrame(np.arange(24.0).reshape(8, 3)[:4], columns=["a", "b", "c"])

    assert digest_frame(wide) == digest_frame(strided)


def test_files_are_named_by_role_and_content(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")

    assert digest_files({"x": a, "y": b}) == digest_files({"y": b, "x": a})
    assert digest_files({"x": a, "y": b}) != digest_files({"x": b, "y": a})
