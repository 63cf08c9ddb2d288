"""LOG-1: every event is validated, and an incomplete last line is reported and not an error."""

import json
import math
import re

import pytest

from sluice.base.errors import ContractError, StorageError
from sluice.eventlog import event_lines
from sluice.eventlog.event_fields import EVENT_FIELDS
from sluice.eventlog.event_log import EventLog, read_events, validate_log
from sluice.eventlog.log_report import inspect_log

START = {"architecture": "gru", "features": ["a", "b"], "config": {"rate": 0.1}}
FOLD = {"fold_id": 0, "train_size": 10, "val_size": 3, "test_size": 3}
METRICS = {"test_metrics": ("sharpe", "loss"), "headline": "loss"}


def write_complete_log(path, clock, *, epochs=3, **changes):
    with EventLog(path, clock=clock) as log:
        log.write("experiment_start", **START)
        log.write("fold_start", **FOLD, seed=3)
        for epoch in range(1, epochs + 1):
            log.write("epoch_complete", epoch=epoch, train_loss=1 / epoch, val_loss=2.0)
        log.write("fold_complete", fold_id=0, sharpe=0.4, loss=0.6)
        log.write("experiment_complete", total_folds=1, elapsed_seconds=2.5, loss=0.6, **changes)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "unit" / "events.ndjson"


def test_written_events_are_read_back(path, clock):
    write_complete_log(path, clock)

    events = read_events(path).events

    assert [event["event"] for event in events] == [
        "experiment_start",
        "fold_start",
        *["epoch_complete"] * 3,
        "fold_complete",
        "experiment_complete",
    ]
    assert events[0]["features"] == ["a", "b"]
    assert events[1]["seed"] == 3
    assert events[3]["train_loss"] == 0.5
    assert events[0]["timestamp"].endswith("+00:00")


def test_a_complete_log_is_valid(path, clock):
    write_complete_log(path, clock)

    report = validate_log(path, **METRICS)

    assert report.valid
    assert report.torn_line is None
    assert report.counts["epoch_complete"] == 3


def test_every_line_is_on_disk_before_the_next(path, clock):
    with EventLog(path, clock=clock) as log:
        for count in range(1, 4):
            log.write("epoch_complete", epoch=count, train_loss=1.0, val_loss=1.0)
            assert len(path.read_bytes().splitlines()) == count


def test_an_existing_log_is_appended_to(path, clock):
    write_complete_log(path, clock)
    write_complete_log(path, clock)

    assert len(read_events(path).events) == 14


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_loss_is_valid_json_and_is_read_back(path, clock, value):
    with EventLog(path, clock=clock) as log:
        log.write("epoch_complete", epoch=7, train_loss=value, val_loss=1.0, extra={"x": [value]})

    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    (event,) = read_events(path).events
    assert event["train_loss"] == value or (math.isnan(value) and math.isnan(event["train_loss"]))
    report = validate_log(path, **METRICS)
    assert len(report.non_finite) == 1
    assert "line 1, epoch_complete: train_loss" in str(report.non_finite[0])
    assert report.num_non_finite == 1


@pytest.mark.parametrize(
    ("event", "fields", "message"),
    [
        ("epoch_complete", {"epoch": 1, "train_loss": 1.0}, "'val_loss' is missing"),
        ("epoch_complete", {"epoch": 1.0, "train_loss": 1.0, "val_loss": 1.0}, "'epoch' must have"),
        (
            "epoch_complete",
            {"epoch": True, "train_loss": 1.0, "val_loss": 1.0},
            "'epoch' must have",
        ),
        ("epoch_complete", {"epoch": 1, "train_loss": "1", "val_loss": 1.0}, "'train_loss' must"),
        ("epoch_complet", {"epoch": 1}, "Did you mean 'epoch_complete'"),
        ("experiment_start", START | {"features": "ab"}, "'features' must have"),
        ("experiment_start", START | {"config": [1]}, "'config' must have"),
        ("experiment_start", START | {"config": {"x": object()}}, "cannot be written as JSON"),
        ("fold_start", FOLD | {"timestamp": "now"}, "'timestamp' is reserved"),
    ],
)
def test_an_invalid_event_is_refused_and_not_written(path, clock, event, fields, message):
    with EventLog(path, clock=clock) as log, pytest.raises(ContractError, match=message):
        log.write(event, **fields)

    assert path.read_bytes() == b""


def test_a_closed_log_refuses_events(path, clock):
    with EventLog(path, clock=clock) as log:
        pass

    with pytest.raises(ContractError, match="must be open"):
        log.write("fold_start", **FOLD)


def edit_line(path, line_number, change):
    lines = path.read_text().splitlines()
    record = json.loads(lines[line_number - 1])
    change(record)
    lines[line_number - 1] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")


def test_every_event_of_a_type_is_checked(path, clock):
    write_complete_log(path, clock)
    edit_line(path, 5, lambda record: record.pop("val_loss"))

    with pytest.raises(ContractError, match=r"line 5, epoch_complete: field 'val_loss' is missing"):
        validate_log(path, **METRICS)


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (6, lambda r: r.pop("sharpe"), "line 6, fold_complete: field 'sharpe' is missing"),
        (7, lambda r: r.pop("loss"), "line 7, experiment_complete: field 'loss' is missing"),
        (6, lambda r: r.update(loss="good"), "line 6, fold_complete: field 'loss' must have"),
        (2, lambda r: r.update(event="fold_begin"), "line 2, fold_begin: not an event type"),
        (2, lambda r: r.pop("event"), "line 2: field 'event' is missing"),
    ],
)
def test_the_number_of_an_invalid_line_is_reported(path, clock, line, change, message):
    write_complete_log(path, clock)
    edit_line(path, line, change)

    with pytest.raises(ContractError, match=message):
        validate_log(path, **METRICS)


def test_all_problems_are_in_the_report(path, clock):
    write_complete_log(path, clock)
    for line in (3, 5):
        edit_line(path, line, lambda record: record.pop("epoch"))

    report = inspect_log(path, **METRICS)

    assert not report.valid
    assert [(p.line, p.event, p.field) for p in report.problems] == [
        (3, "epoch_complete", "epoch"),
        (5, "epoch_complete", "epoch"),
    ]


def test_a_log_without_events_is_invalid(path, clock):
    with EventLog(path, clock=clock):
        pass

    with pytest.raises(ContractError, match="contains no event"):
        validate_log(path, **METRICS)


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_an_incomplete_last_line_is_reported_and_the_rest_is_read(path, clock, cut):
    write_complete_log(path, clock)
    path.write_bytes(path.read_bytes()[:-cut])

    read = read_events(path)

    # If only the newline is missing, the last event is complete.
    assert len(read.events) == (7 if cut == 1 else 6)
    assert (read.torn_line is None) == (cut == 1)
    assert validate_log(path, **METRICS).torn_line == read.torn_line


@pytest.mark.parametrize("cut", [1, 20])
def test_a_log_continues_after_a_crash_without_the_incomplete_line(path, clock, cut):
    write_complete_log(path, clock)
    path.write_bytes(path.read_bytes()[:-cut])

    with EventLog(path, clock=clock) as log:
        assert (log.torn_line is None) == (cut == 1)
        log.write("epoch_complete", epoch=4, train_loss=1.0, val_loss=1.0)

    read = read_events(path)
    assert read.torn_line is None
    assert len(read.events) == (8 if cut == 1 else 7)


def test_an_invalid_line_before_the_last_is_an_error(path, clock):
    write_complete_log(path, clock)
    path.write_text(path.read_text().replace('{"event":"fold_start"', '"fold_start"'))

    with pytest.raises(ContractError, match="line 2: the line must be one JSON object"):
        read_events(path)


def test_an_invalid_last_line_with_a_newline_is_an_error(path, clock):
    write_complete_log(path, clock)
    with path.open("a") as file:
        file.write("Traceback (most recent call last):\n")

    with pytest.raises(ContractError, match="line 8: the line must be one JSON object"):
        read_events(path)
    with pytest.raises(ContractError, match="line 8: the line must be one JSON object"):
        validate_log(path, **METRICS)


@pytest.mark.parametrize("is_last_torn", [False, True])
def test_a_line_above_the_maximum_length_is_one_invalid_line(tmp_path, monkeypatch, is_last_torn):
    path = tmp_path / "events.ndjson"
    monkeypatch.setattr(event_lines, "_MAX_LINE_BYTES", 16)
    monkeypatch.setattr(event_lines, "_SKIP_BYTES", 8)
    # The rest after the first 16 bytes is a JSON object by itself.
    long = b"x" * 16 + b'{"event":"rest"}\n'
    content = b'{"event":"a"}\n' + long + b'{"event":"b"}\n' + long
    path.write_bytes(content[:-1] if is_last_torn else content)

    lines = list(event_lines.read_lines(path))

    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert [line.record and line.record["event"] for line in lines] == ["a", None, "b", None]
    assert [line.text for line in lines] == ["", "x" * 16, "", "x" * 16]
    assert [line.has_newline for line in lines] == [True, True, True, not is_last_torn]


def test_a_line_of_exactly_the_maximum_length_is_an_event(tmp_path, monkeypatch):
    path = tmp_path / "events.ndjson"
    monkeypatch.setattr(event_lines, "_MAX_LINE_BYTES", 13)
    path.write_bytes(b'{"event":"a"}')

    (line,) = event_lines.read_lines(path)

    assert line.record == {"event": "a"}
    assert not line.has_newline


def test_a_log_accepts_a_path_as_text_and_needs_no_clock(tmp_path):
    name = str(tmp_path / "events.ndjson")
    with EventLog(name) as log:
        log.write("epoch_complete", epoch=1, train_loss=1.0, val_loss=1.0)

    (event,) = read_events(name).events
    assert event["timestamp"].endswith("+00:00")
    assert validate_log(name, test_metrics=None, headline=None).valid


def test_the_docstring_of_event_log_lists_every_event_and_field():
    for event, fields in EVENT_FIELDS.items():
        description = EventLog.__doc__.partition(f"- {event}: ")[2].partition("\n    -")[0]
        assert all(re.search(rf"\b{name}\b", description) for name in fields), event


def test_a_missing_log_is_a_storage_error(path):
    with pytest.raises(StorageError, match=r"events\.ndjson"):
        read_events(path)


def test_a_folder_that_cannot_be_created_is_a_storage_error(tmp_path, clock):
    (tmp_path / "file").write_text("")

    with (
        pytest.raises(StorageError, match="Cannot write"),
        EventLog(tmp_path / "file" / "events.ndjson", clock=clock),
    ):
        pass
