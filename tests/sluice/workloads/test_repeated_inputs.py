"""Rows with equal inputs are distributed over all splits if they are separate observations."""

import numpy as np
import pandas as pd
import pytest

from sluice.data.source_settings import CsvSource
from sluice.workloads.columns import Category
from sluice.workloads.repeated_inputs import are_separate_observations
from sluice.workloads.table import TableWorkload, TableWorkloadSettings

ROWS = 400


class Passengers(TableWorkload):
    task = "classification"
    target_column = "survived"
    classes = ("no", "yes")
    inputs = (Category("sex", ("female", "male")),)
    repeated_inputs = True


class Copies(Passengers):
    repeated_inputs = False


@pytest.fixture
def passengers() -> pd.DataFrame:
    """Rows sorted by both columns, as in a file that a table of counts was expanded to."""
    rng = np.random.default_rng(0)
    sex = np.where(np.arange(ROWS) < ROWS // 2, "female", "male")
    survived = np.where(rng.random(ROWS) < np.where(sex == "female", 0.7, 0.2), "yes", "no")
    rows = pd.DataFrame({"sex": sex, "survived": survived})
    return rows.sort_values(["sex", "survived"], ignore_index=True)


def load(workload_type: type[TableWorkload], rows: pd.DataFrame, folder) -> pd.DataFrame:
    rows.to_csv(folder / "data.csv", index=False)
    source = CsvSource(uri=str(folder / "data.csv"), index=None)
    return workload_type(TableWorkloadSettings(source=source)).load_rows()


def test_each_half_of_the_rows_has_the_composition_of_the_whole(passengers, tmp_path):
    rows = load(Passengers, passengers, tmp_path)

    assert rows.index.is_unique
    assert rows.index.is_monotonic_increasing
    for half in (rows.iloc[: ROWS // 2], rows.iloc[ROWS // 2 :]):
        assert (half["sex"] == "male").mean() == pytest.approx(0.5, abs=0.1)
        survived = half["survived"] == "yes"
        assert survived.mean() == pytest.approx((passengers["survived"] == "yes").mean(), abs=0.1)


def test_copies_are_neighbors(passengers, tmp_path):
    rows = load(Copies, passengers, tmp_path)

    assert (rows["sex"] != rows["sex"].shift()).sum() == 2


def test_rows_keep_their_keys_when_rows_are_appended(passengers, tmp_path):
    before = load(Passengers, passengers, tmp_path)
    more = pd.concat([passengers, passengers.tail(20).assign(sex="female")])

    after = load(Passengers, more, tmp_path)

    assert len(after) == ROWS + 20
    pd.testing.assert_frame_equal(after.loc[before.index], before)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"a": np.arange(110) % 10}, True),
        ({"a": np.arange(100) % 10}, False),  # only ten equal rows
        ({"a": np.repeat([1.0, np.nan], 55), "b": "x"}, True),
        ({"a": [0] * 20 + [*range(1, 81)]}, True),
        ({"a": [0] * 19 + [*range(1, 82)]}, False),
        ({"a": np.tile(np.arange(100.0), 3)}, False),  # a table that was appended twice
    ],
)
def test_many_equal_rows_are_separate_observations(inputs, expected):
    assert are_separate_observations(pd.DataFrame(inputs)) is expected
