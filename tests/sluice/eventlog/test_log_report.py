"""LOG-1: problems and completeness of a log are reported, with or without its workload."""

import json
import math

import pytest

from sluice.base.errors import ContractError, StorageError
from sluice.eventlog.event_fields import EVENT_FIELDS
from sluice.eventlog.event_log import EventLog, read_events, validate_log
from sluice.eventlog.log_report import inspect_log
from sluice.eventlog.log_response import respond_to_log_problem
from sluice.findings.catalogue import find_fault

START = {"event": "experiment_start", "architecture": "gru", "features": ["a"], "config": {}}
FOLD = {"event": "fold_start", "fold_id": 0, "train_size": 9, "val_size": 3, "test_size": 3}
EPOCH = {"event": "epoch_complete", "epoch": 1, "train_loss": 1.0, "val_loss": 2.0}
FOLD_END = {"event": "fold_complete", "fold_id": 0, "test_sharpe": 0.5, "test_sortino": 1}
END = {
    "event": "experiment_complete",
    "total_folds": 1,
    "mean_sharpe": 0.5,
    "elapsed_seconds": 2.0,
}
GATE = {"event": "gate_start", "workload": "W", "level": "full", "checks": ["a_holds"]}
CHECK = {"event": "check_start", "name": "a_holds", "check_id": "instantiation"}
CHECK_END = {
    "event": "check_complete",
    "name": "a_holds",
    "check_id": "instantiation",
    "outcome": "pass",
    "seconds": 0.5,
    "summary": "NaN",
}
GATE_END = {"event": "gate_complete", "outcome": "pass", "seconds": 1}
STOPPED = {"event": "gate_stopped", "reason": "Ctrl-C", "check": "a_holds"}
COMPLETE_TRAINING = (START, FOLD, EPOCH, FOLD_END, END)
COMPLETE_GATE = (GATE, CHECK, CHECK_END, GATE_END)


@pytest.fixture
def inspect(tmp_path):
    def run(*records, text="", test_metrics=None, headline=None):
        path = tmp_path / "events.ndjson"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + text)
        return inspect_log(path, test_metrics=test_metrics, headline=headline)

    return run


@pytest.mark.parametrize(
    "records",
    [
        COMPLETE_TRAINING,
        COMPLETE_GATE,
        (*COMPLETE_TRAINING, *COMPLETE_TRAINING),
        (*COMPLETE_GATE, *COMPLETE_TRAINING),
    ],
)
def test_a_complete_log_is_valid_and_complete(inspect, records):
    report = inspect(*records)

    assert report.valid, report.problems
    assert report.complete
    assert sum(report.counts.values()) == len(records)
    assert report.num_non_finite == 0


def test_every_declared_field_is_required(inspect):
    """For each event type, removing one field is reported as exactly one problem."""
    for records in (COMPLETE_TRAINING, COMPLETE_GATE, (*COMPLETE_GATE[:-1], STOPPED)):
        for index, record in enumerate(records):
            for name in EVENT_FIELDS[record["event"]]:
                incomplete = {k: v for k, v in record.items() if k != name}
                report = inspect(*records[:index], incomplete, *records[index + 1 :])

                assert [(p.line, p.event, p.field) for p in report.problems] == [
                    (index + 1, record["event"], name)
                ]


def test_events_of_the_gate_have_the_declared_fields():
    assert {e: set(EVENT_FIELDS[e]) for e in EVENT_FIELDS if e.startswith(("gate", "check"))} == {
        "gate_start": {"workload", "level", "checks"},
        "check_start": {"name", "check_id"},
        "check_complete": {"name", "check_id", "outcome", "seconds", "summary"},
        "gate_complete": {"outcome", "seconds"},
        "gate_stopped": {"reason", "check"},
    }


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (3, {"test_sharpe": None, "test_sortino": "1"}, "no number is named test_*"),
        (4, {"mean_sharpe": "good"}, "no number is named mean_*"),
        (4, {"mean_sharpe": True}, "no number is named mean_*"),
    ],
)
def test_without_a_workload_a_missing_metric_is_noted(inspect, index, changes, message):
    records = list(COMPLETE_TRAINING)
    records[index] = records[index] | changes

    report = inspect(*records)

    assert report.valid
    (note,) = report.notes
    assert note.line == index + 1
    assert message in str(note)


def test_without_a_workload_metrics_that_differ_from_the_first_fold_are_noted(inspect):
    other = {"event": "fold_complete", "fold_id": 1, "test_sharpe": 0.5, "test_mae": 1}

    report = inspect(*COMPLETE_TRAINING[:-1], other, END)

    assert report.valid
    (note,) = report.notes
    assert note.line == 5
    assert "the first fold has test_sharpe, test_sortino, but this fold has test_mae" in note.what


def test_written_events_are_valid_without_a_workload(tmp_path):
    """LOG-1: each event type is written with only its declared fields."""
    values = {"integer": 1, "number": 0.5, "string": "t", "list of strings": ["a"], "mapping": {}}
    with EventLog(tmp_path / "log") as log:
        for event, fields in EVENT_FIELDS.items():
            log.write(event, **{name: values[kind] for name, kind in fields.items()})

    report = inspect_log(tmp_path / "log", test_metrics=None, headline=None)

    assert report.valid, report.problems
    assert set(report.counts) == set(EVENT_FIELDS)
    assert [note.event for note in report.notes] == ["fold_complete", "experiment_complete"]


def test_with_a_workload_its_metrics_are_required(inspect):
    report = inspect(*COMPLETE_TRAINING, test_metrics=("test_rmse",), headline="mean_rmse")

    assert [(p.line, p.field) for p in report.problems] == [(4, "test_rmse"), (5, "mean_rmse")]
    assert inspect(*COMPLETE_TRAINING, test_metrics=("test_sharpe",), headline="mean_sharpe").valid


@pytest.mark.parametrize(
    ("records", "open_events"),
    [
        (COMPLETE_TRAINING[:4], ["experiment_start"]),
        (COMPLETE_TRAINING[:3], ["experiment_start", "fold_start"]),
        ((FOLD, EPOCH), ["fold_start"]),
        ((FOLD, EPOCH, FOLD_END), []),
        ((FOLD | {"seed": 1}, FOLD | {"seed": 2}, FOLD_END | {"seed": 2}), ["fold_start"]),
        ((FOLD | {"seed": 1}, FOLD | {"fold_id": 1}, FOLD_END), ["fold_start"]),
        (COMPLETE_GATE[:3], ["gate_start"]),
        ((GATE, CHECK, STOPPED), []),
        ((*COMPLETE_GATE, GATE), ["gate_start"]),
        ((STOPPED,), []),
    ],
)
def test_a_missing_end_event_makes_a_log_incomplete_but_not_invalid(inspect, records, open_events):
    report = inspect(*records)

    assert report.valid, report.problems
    assert [problem.event for problem in report.gaps] == open_events
    assert report.complete == (not open_events)


def test_an_experiment_with_only_a_start_event_is_incomplete(inspect):
    report = inspect(COMPLETE_TRAINING[0])

    assert report.valid
    assert not report.complete
    assert [str(gap) for gap in report.gaps] == [
        "line 1, experiment_start: no experiment_complete follows"
    ]


def test_fewer_folds_than_total_folds_make_a_log_incomplete(inspect):
    report = inspect(*COMPLETE_TRAINING[:-1], END | {"total_folds": 3})

    assert not report.complete
    assert "total_folds is 3, but only these folds have a fold_complete: 0" in str(report.gaps[0])


def test_an_epoch_without_a_start_event_is_incomplete(inspect):
    assert not inspect(EPOCH).complete


PHASES = (
    {"phase": "poc_start", "timestamp": "2026-01-01T00:00:00Z"},
    {"phase": "poc_complete", "timestamp": "2026-01-01T00:00:09Z"},
)


@pytest.mark.parametrize("end", ["poc_complete", "poc_end", "poc_stopped"])
def test_events_named_by_the_field_phase_are_read(inspect, end):
    report = inspect(PHASES[0], {"phase": end})

    assert report.valid
    assert report.complete
    assert report.counts == {"poc_start": 1, end: 1}
    assert "not an event type" in str(report.notes[0])


def test_a_phase_without_its_end_is_incomplete(inspect):
    report = inspect(PHASES[0])

    assert report.valid
    assert [gap.event for gap in report.gaps] == ["poc_start"]


def test_a_known_event_in_the_field_phase_requires_its_fields(inspect):
    report = inspect({"phase": "epoch_complete", "epoch": 1})

    assert [problem.field for problem in report.problems] == ["train_loss", "val_loss"]


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_an_incomplete_last_line_makes_a_log_incomplete_but_not_invalid(inspect, cut):
    line = json.dumps(END)[:-cut]

    report = inspect(*COMPLETE_TRAINING[:-1], text=line)

    assert report.valid
    assert report.torn_line == line
    assert not report.complete


def test_a_line_that_is_not_an_event_is_a_problem(inspect):
    report = inspect(START, text='Traceback (most recent call last):\n["a"]\n' + json.dumps(END))

    assert [(p.line, p.event) for p in report.problems] == [(2, ""), (3, "")]
    assert "must be one JSON object, got 'Traceback" in report.problems[0].what
    assert report.counts == {"experiment_start": 1, "experiment_complete": 1}


@pytest.mark.parametrize("number", ['"NaN"', "NaN", "1e999", '"-Infinity"'])
def test_non_finite_numbers_are_reported_in_every_notation(inspect, number):
    text = f'{{"event":"fold_complete","fold_id":0,"test_loss":{number},"grad":{number}}}\n'

    report = inspect(text=text)

    assert report.valid, report.problems
    assert [(p.line, p.event, p.field) for p in report.non_finite] == [
        (1, "fold_complete", "test_loss"),
        (1, "fold_complete", "grad"),
    ]


def test_a_summary_with_the_text_nan_stays_text(tmp_path, clock):
    path = tmp_path / "gate.ndjson"
    with EventLog(path, clock=clock) as log:
        log.write(**CHECK_END)
        log.write("epoch_complete", epoch=1, train_loss=math.nan, val_loss=1.0)

    check, epoch = read_events(path).events
    assert check["summary"] == "NaN"
    assert math.isnan(epoch["train_loss"])
    assert validate_log(path, test_metrics=(), headline="").num_non_finite == 1


INVALID_LOGS = {
    "empty": (b"", b"\n\n"),
    "not a log": (
        b"torn",
        b"a,b\n1,2\n",
        b"a,b\n1,2",
        b'{\n "event": "fold_start"\n}\n',
        b'[{"event": "fold_start"}]\n',
        bytes(range(256)) * 40,
        b"\x89PNG\r\n\x1a\n" + bytes(100),
    ),
    "invalid JSON": (json.dumps(EPOCH).encode() + b"\nbroken\n" + json.dumps(EPOCH).encode(),),
    "no event type": (b'{"event": 3}\n', b'{"type": "fold_start"}\n'),
    "unknown event": (b'{"event": "fold_begin"}\n',),
    "missing field": (b'{"event": "fold_complete"}\n',),
    "wrong type": (b'{"event": "fold_complete", "fold_id": "0"}\n',),
}


@pytest.mark.parametrize(
    ("kind", "content"),
    [(kind, content) for kind in INVALID_LOGS for content in INVALID_LOGS[kind]],
)
def test_each_invalid_log_is_one_problem_of_its_kind_with_its_response(tmp_path, kind, content):
    """LOG-1, RESP-1: a table or binary file is distinguished from an event without a field."""
    (tmp_path / "log").write_bytes(content)

    report = inspect_log(tmp_path / "log", test_metrics=None, headline=None)

    assert [problem.kind for problem in report.problems] == [kind]
    assert report.num_problems == 1
    assert report.torn_line is None
    response = respond_to_log_problem(kind)
    general_kinds = ("missing field", "wrong type")
    assert (response.fix == find_fault("log validation failed").fix) == (kind in general_kinds)
    with pytest.raises(ContractError) as caught:
        validate_log(tmp_path / "log", test_metrics=None, headline=None)
    assert (caught.value.cause, caught.value.fix) == (response.cause, response.fix)


def test_a_table_instead_of_a_log_is_reported_with_its_first_line(tmp_path):
    (tmp_path / "log").write_text("a,b\n" * 3000)

    (problem,) = inspect_log(tmp_path / "log", test_metrics=None, headline=None).problems

    assert str(problem) == (
        "line 1: this is not an event log, it contains no event: "
        "the line must be one JSON object, got 'a,b'"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + json.dumps(EPOCH).encode() + b"\r\n",
        json.dumps(EPOCH).encode() + b"\n\n" + json.dumps(EPOCH).encode(),
    ],
)
def test_a_byte_order_mark_crlf_and_blank_lines_are_accepted(tmp_path, content):
    (tmp_path / "log").write_bytes(content)

    report = inspect_log(tmp_path / "log", test_metrics=None, headline=None)

    assert report.valid
    assert report.torn_line is None


@pytest.mark.parametrize("content", [bytes(range(256)) * 40, b"[" * 100_000, b'{"event": 3}\n'])
def test_a_file_that_is_not_a_log_is_invalid_and_raises_no_error(tmp_path, content):
    (tmp_path / "log").write_bytes(content)

    assert not inspect_log(tmp_path / "log", test_metrics=None, headline=None).valid


def test_all_problems_are_counted_and_the_first_1000_are_kept(inspect):
    report = inspect(*[{"event": "epoch_complete"}] * 1500)

    assert report.num_problems == 4500
    assert len(report.problems) == 1000
    assert report.problems[-1].line == 334


def test_the_error_states_the_number_of_further_problems(tmp_path):
    (tmp_path / "log").write_text('{"event":"epoch_complete"}\n' * 3)

    with pytest.raises(ContractError, match=r"line 1, epoch_complete: .*\(and 4 more\)"):
        validate_log(tmp_path / "log", test_metrics=None, headline=None)


def test_a_folder_instead_of_a_log_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="Cannot read the log"):
        inspect_log(tmp_path, test_metrics=None, headline=None)


def test_each_additional_invalid_line_adds_a_problem(inspect):
    invalid = {k: v for k, v in EPOCH.items() if k != "val_loss"}
    counts = [inspect(*[EPOCH] * (5 - n), *[invalid] * n).num_problems for n in range(6)]

    assert counts == [0, 1, 2, 3, 4, 5]
