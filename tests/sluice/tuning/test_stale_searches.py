"""Differences from an unfinished search are reported once."""

from sluice.tuning.stale_searches import record_request
from sluice.tuning.study_folder import StudyFolder


def start_search(folder, request, *, is_unfinished=True):
    record_request(folder, request)
    study = StudyFolder(folder, request)
    study.journal.touch()
    if not is_unfinished:
        (folder / "result.json").write_text("{}")


def test_differences_from_an_unfinished_search_are_reported_once(tmp_path):
    start_search(tmp_path / "one", {"pipeline": "p", "search": {"num_trials": 20, "seed": 0}})
    now = {"pipeline": "p", "search": {"num_trials": 10, "seed": 0}}

    assert record_request(tmp_path / "two", now) == ("search.num_trials was 20, now 10",)
    assert record_request(tmp_path / "two", now) == ()


def test_finished_searches_and_other_pipelines_are_not_reported(tmp_path):
    start_search(tmp_path / "one", {"pipeline": "p", "seed": 1}, is_unfinished=False)
    start_search(tmp_path / "two", {"pipeline": "other", "seed": 1})

    assert record_request(tmp_path / "three", {"pipeline": "p", "seed": 2}) == ()


def test_resuming_the_same_search_reports_nothing(tmp_path):
    request = {"pipeline": "p", "seed": 1}
    start_search(tmp_path / "one", request)

    assert record_request(tmp_path / "one", request) == ()
