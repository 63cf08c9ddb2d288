"""A search whose trials all fail, and one whose disk is full: the cause, and nothing lost."""

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


def test_when_every_training_fails_the_first_cause_is_named_with_its_line(objective, tmp_path):
    own = objective(base=SHORT, raise_in_loss=True)
    work = SearchWork(objective=own, space=space().leading(1), settings=TINY)

    said = r"No trial of 4 .*ZeroDivisionError: the user's bug \(raised at .*synthetic\.py"
    with pytest.raises(SearchFailed, match=said):
        work(tmp_path / "search")


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
@pytest.mark.parametrize("after", [1, 5])
def test_a_disk_that_fills_up_in_mid_search_loses_no_report(scheduler, after, tmp_path):
    """TUNE-3: with room again it ends with the trials, stops and exploits it would have had."""
    own = settings(8, scheduler)
    expected = search(tmp_path / "whole", own)
    with small_disk(tmp_path / "disk", kib=400) as disk:
        ballast = []

        def on_report(_outcome, _trials):
            ballast.append(None)
            if len(ballast) == after:
                ballast[-1] = fill(disk)

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            search(disk / "cut", own, on_report=on_report)
        kept = num_lines(disk / "cut")
        ballast[after - 1].unlink()
        resumed = search(disk / "cut", own)

    assert after <= kept < num_lines(tmp_path / "whole")
    assert decisions(resumed) == decisions(expected)


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_checkpoint_is_no_failed_trial(objective, tmp_path):
    """Otherwise a search would go on and call every trial after it a failure."""
    own = objective(base=SHORT)
    work = SearchWork(objective=own, space=space().leading(1), settings=TINY)
    expected = work(tmp_path / "whole")
    with small_disk(tmp_path / "disk", kib=24) as disk:
        with pytest.raises(StorageError, match=r"No room left to write .*epoch-00000"):
            work(disk / "cut")
        assert b'"result"' not in (disk / "cut" / "journal.jsonl").read_bytes()
    assert decisions(work(disk / "cut")) == decisions(expected)
