"""Searches whose trials all fail or whose disk is full report the cause and lose no work."""

import pytest

from sluice.base.errors import SearchFailed, StorageError
from sluice.tuning.settings import SearchSettings
from tests.sluice.tuning.conftest import SINE
from tests.sluice.tuning.test_killed import num_lines
from tests.sluice.tuning.toy_space import decisions, search, settings, space
from tests.support.killed_work import SearchWork
from tests.support.small_disk import fill, small_disk

TINY = SearchSettings(num_trials=4, grace_epochs=1, seed=3)
SHORT = SINE.model_copy(
    update={"training": SINE.training.model_copy(update={"max_epochs": 2, "batch_rows": 64})}
)


def test_search_whose_trials_all_fail_reports_the_first_cause_and_its_file(objective, tmp_path):
    failing_objective = objective(base=SHORT, raise_in_loss=True)
    work = SearchWork(objective=failing_objective, space=space().leading(1), settings=TINY)

    message = r"No trial of 4 .*ZeroDivisionError: the user's bug \(raised at .*synthetic\.py"
    with pytest.raises(SearchFailed, match=message):
        work(tmp_path / "search")


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
@pytest.mark.parametrize("after", [1, 5])
def test_full_disk_during_a_search_loses_no_report(scheduler, after, tmp_path):
    """TUNE-3: once there is free space, the search resumes with the same decisions."""
    search_settings = settings(8, scheduler)
    expected = search(tmp_path / "whole", search_settings)
    with small_disk(tmp_path / "disk", kib=400) as disk:
        ballast = []

        def on_report(_outcome, _trials):
            ballast.append(None)
            if len(ballast) == after:
                ballast[-1] = fill(disk)

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            search(disk / "cut", search_settings, on_report=on_report)
        kept = num_lines(disk / "cut")
        ballast[after - 1].unlink()
        resumed = search(disk / "cut", search_settings)

    assert after <= kept < num_lines(tmp_path / "whole")
    assert decisions(resumed) == decisions(expected)


@pytest.mark.slow
def test_full_disk_during_a_checkpoint_does_not_fail_the_trial(objective, tmp_path):
    """Otherwise the search would continue and every later trial would fail."""
    short_objective = objective(base=SHORT)
    work = SearchWork(objective=short_objective, space=space().leading(1), settings=TINY)
    expected = work(tmp_path / "whole")
    with small_disk(tmp_path / "disk", kib=24) as disk:
        with pytest.raises(StorageError, match=r"No room left to write .*epoch-00000"):
            work(disk / "cut")
        assert b'"result"' not in (disk / "cut" / "journal.jsonl").read_bytes()
    assert decisions(work(disk / "cut")) == decisions(expected)
