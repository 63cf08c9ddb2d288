"""POC-3: the check writes and reads a log in the folder and reports why it fails."""

import pytest

from sluice.eventlog import event_log_check
from sluice.eventlog.event_log import EventLog, LogEvents
from sluice.eventlog.event_log_check import check_event_log


@pytest.fixture
def check(clock):
    def run(folder, **changes):
        arguments = {
            "architecture": "gru",
            "features": ("a", "b"),
            "config": {"model": {"hidden": 8}},
            "headline": "loss",
        }
        return check_event_log(folder, **arguments | changes, clock=clock)

    return run


def test_a_writable_folder_passes_and_stays_empty(check, tmp_path):
    finding = check(tmp_path)

    assert finding.outcome == "pass"
    assert finding.numbers == {"events": 5}
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_a_file_fails_with_the_fix(check, tmp_path):
    (tmp_path / "file").write_text("")

    finding = check(tmp_path / "file")

    assert (finding.outcome, finding.fault) == ("fail", "storage not writable")
    assert str(tmp_path / "file") in finding.summary
    assert finding.response[1]


def test_a_read_only_folder_fails_with_the_fix(check, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    # Tests may run as root, which may write to read-only folders.
    monkeypatch.setattr(event_log_check.tempfile, "mkdtemp", refuse)

    finding = check(tmp_path)

    assert (finding.outcome, finding.fault) == ("fail", "storage not writable")
    assert "SLUICE_HOME" in finding.response[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": (1, 2)}, "'features' must have"),
        ({"config": {"weights": object()}}, "cannot be written as JSON"),
        ({"architecture": None}, "'architecture' must have"),
    ],
)
def test_a_workload_that_cannot_be_logged_fails(check, tmp_path, changes, message):
    finding = check(tmp_path, **changes)

    assert (finding.outcome, finding.fault) == ("fail", "log validation failed")
    assert message in finding.summary
    assert list(tmp_path.iterdir()) == []


def test_events_missing_after_the_flush_fail(check, tmp_path, monkeypatch):
    def read_without_last_two(path):
        return LogEvents(events=event_log_read(path).events[:-2], torn_line=None)

    event_log_read = event_log_check.read_events
    monkeypatch.setattr(event_log_check, "read_events", read_without_last_two)

    finding = check(tmp_path)

    assert finding.fault == "log validation failed"
    assert "3 of 5 events were on disk after the flush, and lines [4, 5] differ" in finding.summary


def test_a_field_missing_in_the_log_fails(check, tmp_path, monkeypatch):
    class FieldDroppingLog(EventLog):
        def write(self, event, **fields):
            super().write(event, **{k: v for k, v in fields.items() if k != "loss"})

    monkeypatch.setattr(event_log_check, "EventLog", FieldDroppingLog)

    finding = check(tmp_path)

    assert (finding.outcome, finding.fault) == ("fail", "log validation failed")
    assert "line 4, fold_complete: field 'loss' is missing" in finding.summary
