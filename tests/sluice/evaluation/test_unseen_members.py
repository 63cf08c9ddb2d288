import pandas as pd
import pytest

from sluice.base.errors import ContractError
from sluice.evaluation.unseen_members import latest_unseen, row_labels
from tests.sluice.evaluation.scored_workload import FOLDS, member

DATES = pd.date_range("2020-01-01", periods=40)
FOLD = FOLDS[0]  # its test begins at position 16, 2020-01-17


def pick(*through: str, index: pd.Index = DATES, horizon_rows: int = 1) -> int:
    members = [member(0, i, through=label) for i, label in enumerate(through)]
    return latest_unseen(members, index, FOLD, horizon_rows=horizon_rows).fold_id


@pytest.mark.parametrize(
    ("horizon_rows", "last_allowed"), [(1, "2020-01-15"), (3, "2020-01-13"), (15, "2020-01-01")]
)
def test_targets_that_reach_into_the_test_rows_count_as_seen(horizon_rows, last_allowed):
    too_late = str(pd.Timestamp(last_allowed) + pd.Timedelta("1D"))

    assert pick(last_allowed, too_late, horizon_rows=horizon_rows) == 0
    with pytest.raises(ContractError, match=f"more than {horizon_rows} rows before the first test"):
        pick(too_late, horizon_rows=horizon_rows)


def test_the_member_with_the_most_training_data_is_selected_in_any_order():
    assert pick("2020-01-10", "2020-01-12", "2020-01-03", "2020-03-01") == 1


def test_a_label_that_is_no_longer_in_the_table_is_placed_in_time():
    without_weekends = DATES[DATES.day_of_week < 5]

    # A Saturday counts as the Friday before it, position 2; a year earlier as before all rows.
    assert pick("2020-01-02", "2020-01-04", index=without_weekends, horizon_rows=13) == 1
    assert pick("2019-06-01", index=without_weekends) == 0


def test_whole_numbers_and_text_are_compared_as_such():
    assert pick("9", "14", "15", index=pd.RangeIndex(40)) == 1
    assert pick("b", "z", index=pd.Index([f"c{i:02d}" for i in range(40)])) == 0


@pytest.mark.parametrize(
    ("label", "index"),
    [
        ("soon", DATES),
        ("2020-01-01", pd.RangeIndex(40)),
        ("2020-01-01", DATES.tz_localize("UTC")),
    ],
)
def test_a_label_of_another_kind_is_refused(label, index):
    with pytest.raises(ContractError, match=f"got '{label}'"):
        pick(label, index=index)


def test_labels_are_iso():
    assert row_labels(DATES[:1]).tolist() == ["2020-01-01T00:00:00"]
    assert row_labels(pd.Index([3, 10])).tolist() == ["3", "10"]
