"""Tables as artifacts (DATA-4)."""

import numpy as np
import pandas as pd
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.data.table import load_table, save_table


def frame(rows: int = 50) -> pd.DataFrame:
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
        frame(),
        frame().reset_index(),
        frame().set_index("b"),
        frame().tz_localize("UTC"),
        frame().set_axis(frame().index.as_unit("ns")),
    ],
)
def test_a_table_comes_back_as_it_was(store, table):
    again = load_table(save_table(table, store), store)

    pd.testing.assert_frame_equal(again, table, check_freq=False)
    assert again.index.name == table.index.name


def test_the_record_describes_the_table(store):
    record = save_table(frame(), store)

    assert (record.num_rows, record.columns) == (50, ("a", "b", "c", "d", "e"))
    assert record.first_label.startswith("2020-01-01")
    assert record.last_label.startswith("2020-02-19")


def test_the_same_table_is_one_file_and_one_version(store, tmp_path):
    noted = frame()
    noted.attrs["loaded_at"] = "noon"

    records = {save_table(table, store) for table in (frame(), frame(), noted)}

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
def test_another_table_is_another_version(store, change):
    assert save_table(change(frame()), store).digest != save_table(frame(), store).digest


def test_a_record_of_another_table_is_rejected(store):
    record = save_table(frame(), store)
    other = save_table(frame().iloc[1:], store)

    with pytest.raises(IntegrityError, match="contains table"):
        load_table(record.model_copy(update={"artifact": other.artifact}), store)


def test_damaged_and_missing_files_are_rejected(store):
    record = save_table(frame(), store)
    path = store.path(record.artifact)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(IntegrityError, match="does not match its name"):
        load_table(record, store)

    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        load_table(record, store)


def test_an_empty_table_and_mixed_values_are_rejected(store, tmp_path):
    with pytest.raises(ContractError, match="at least one row"):
        save_table(frame().iloc[:0], store)
    with pytest.raises(ContractError, match="values of one type"):
        save_table(pd.DataFrame({"x": [1, "a"]}), store)
    assert not list(tmp_path.rglob("*.tmp"))
