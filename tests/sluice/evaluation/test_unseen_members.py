"""The member with the most training data before the test rows is selected."""

import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.unseen_members import latest_unseen, row_labels
from tests.sluice.evaluation.scored_workload import FOLDS, make_member

DATES = pd.date_range("2020-01-01", periods=40)
FOLD = FOLDS[0]  # its test rows begin at position 16, 2020-01-17


def select_member(*through: str, index: pd.Index = DATES, horizon_rows: int = 1) -> int:
    members = [make_member(0, i, through=label) for i, label in enumerate(through)]
    return latest_unseen(members, index, FOLD, horizon_rows=horizon_rows).fold_id


@pytest.mark.parametrize(
    ("horizon_rows", "last_allowed"), [(1, "2020-01-15"), (3, "2020-01-13"), (15, "2020-01-01")]
)
def test_members_whose_targets_overlap_the_test_rows_are_excluded(horizon_rows, last_allowed):
    too_late = str(pd.Timestamp(last_allowed) + pd.Timedelta("1D"))

    assert select_member(last_allowed, too_late, horizon_rows=horizon_rows) == 0
    with pytest.raises(ContractError, match=f"more than {horizon_rows} rows before the first test"):
        select_member(too_late, horizon_rows=horizon_rows)


def test_the_member_with_the_most_training_data_is_selected_in_any_order():
    assert select_member("2020-01-10", "2020-01-12", "2020-01-03", "2020-03-01") == 1


def test_a_label_that_is_no_longer_in_the_table_is_compared_by_time():
    without_weekends = DATES[DATES.day_of_week < 5]

    # A Saturday counts as the Friday before it, position 2; a year earlier as before all rows.
    assert select_member("2020-01-02", "2020-01-04", index=without_weekends, horizon_rows=13) == 1
    assert select_member("2019-06-01", index=without_weekends) == 0


def test_integer_and_text_labels_are_compared_by_their_order():
    assert select_member("9", "14", "15", index=pd.RangeIndex(40)) == 1
    assert select_member("b", "z", index=pd.Index([f"c{i:02d}" for i in range(40)])) == 0


@pytest.mark.parametrize(
    ("label", "index"),
    [
        ("soon", DATES),
        ("2020-01-01", pd.RangeIndex(40)),
        ("2020-01-01", DATES.tz_localize("UTC")),
    ],
)
def test_a_label_of_another_type_is_rejected(label, index):
    with pytest.raises(ContractError, match=f"got '{label}'"):
        select_member(label, index=index)


def test_row_labels_of_dates_are_iso_strings():
    assert row_labels(DATES[:1]).tolist() == ["2020-01-01T00:00:00"]
    assert row_labels(pd.Index([3, 10])).tolist() == ["3", "10"]
