"""Saving of tables as artifacts, and their digests (DATA-4)."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.data.table import load_table, save_table


def make_frame(rows: int = 50) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    index = pd.date_range("2020-01-01", periods=rows, name="date").as_unit("us")
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "b": rng.integers(0, 9, rows),
            "c": ["x", None] * (rows // 2),
            "d": rng.normal(size=rows) > 0,
            "e": np.float32(rng.normal(size=rows)),
        },
        index,
    )


@pytest.fixture
def store(tmp_path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


@pytest.mark.parametrize(
    "table",
    [
        make_frame(),
        make_frame().reset_index(),
        make_frame().set_index("b"),
        make_frame().tz_localize("UTC"),
        make_frame().set_axis(make_frame().index.as_unit("ns")),
    ],
)
def test_saved_table_is_loaded_unchanged(store, table):
    loaded = load_table(save_table(table, store), store)

    pd.testing.assert_frame_equal(loaded, table, check_freq=False)
    assert loaded.index.name == table.index.name


def test_record_has_rows_columns_and_labels(store):
    record = save_table(make_frame(), store)

    assert (record.num_rows, record.columns) == (50, ("a", "b", "c", "d", "e"))
    assert record.first_label.startswith("2020-01-01")
    assert record.last_label.startswith("2020-02-19")


def test_equal_tables_share_one_file_and_one_record(store, tmp_path):
    with_attrs = make_frame()
    with_attrs.attrs["loaded_at"] = "noon"

    records = {save_table(table, store) for table in (make_frame(), make_frame(), with_attrs)}

    assert len(records) == 1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.assign(a=t["a"].where(t["a"] != t["a"].iloc[7], 0.0)),
        lambda t: t.rename(columns={"a": "z"}),
        lambda t: t[::-1],
        lambda t: t.rename_axis("day"),
        lambda t: t.astype({"b": "float64"}),
    ],
)
def test_changed_table_has_another_digest(store, change):
    assert save_table(change(make_frame()), store).digest != save_table(make_frame(), store).digest


def test_record_with_the_artifact_of_another_table_is_rejected(store):
    record = save_table(make_frame(), store)
    other = save_table(make_frame().iloc[1:], store)

    with pytest.raises(IntegrityError, match="contains table"):
        load_table(record.model_copy(update={"artifact": other.artifact}), store)


def test_damaged_and_missing_files_are_rejected(store):
    record = save_table(make_frame(), store)
    path = store.path(record.artifact)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(IntegrityError, match="does not match its name"):
        load_table(record, store)

    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        load_table(record, store)


def test_empty_table_and_mixed_types_are_rejected(store, tmp_path):
    with pytest.raises(ContractError, match="at least one row"):
        save_table(make_frame().iloc[:0], store)
    with pytest.raises(ContractError, match="values of one type"):
        save_table(pd.DataFrame({"x": [1, "a"]}), store)
    assert not list(tmp_path.rglob("*.tmp"))
