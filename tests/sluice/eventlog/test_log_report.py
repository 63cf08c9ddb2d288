"""LOG-1: problems and completeness of any log, with or without a known workload."""

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
WHOLE = (START, FOLD, EPOCH, FOLD_END, END)
WHOLE_GATE = (GATE, CHECK, CHECK_END, GATE_END)


@pytest.fixture
def inspect(tmp_path):
    def run(*records, text="", test_metrics=None, headline=None):
        path = tmp_path / "events.ndjson"
        path.write_text("".join(json.dumps(record) + "\n" for record in records) + text)
        return inspect_log(path, test_metrics=test_metrics, headline=headline)

    return run


@pytest.mark.parametrize("records", [WHOLE, WHOLE_GATE, (*WHOLE, *WHOLE), (*WHOLE_GATE, *WHOLE)])
def test_complete_log_is_valid_and_complete(inspect, records):
    report = inspect(*records)

    assert report.valid, report.problems
    assert report.complete
    assert sum(report.counts.values()) == len(records)
    assert report.num_non_finite == 0


def test_every_declared_field_is_needed(inspect):
    """A known answer for every type: take one field away, and exactly that is told."""
    for records in (WHOLE, WHOLE_GATE, (*WHOLE_GATE[:-1], STOPPED)):
        for index, record in enumerate(records):
            for name in EVENT_FIELDS[record["event"]]:
                cut = {k: v for k, v in record.items() if k != name}
                report = inspect(*records[:index], cut, *records[index + 1 :])

                assert [(p.line, p.event, p.field) for p in report.problems] == [
                    (index + 1, record["event"], name)
                ]


def test_the_gate_declares_its_own_events():
    assert {e: set(EVENT_FIELDS[e]) for e in EVENT_FIELDS if e.startswith(("gate", "check"))} == {
        "gate_start": {"workload", "level", "checks"},
        "check_start": {"name", "check_id"},
        "check_complete": {"name", "check_id", "outcome", "seconds", "summary"},
        "gate_complete": {"outcome", "seconds"},
        "gate_stopped": {"reason", "check"},
    }


@pytest.mark.parametrize(
    ("place", "changes", "seen"),
    [
        (3, {"test_sharpe": None, "test_sortino": "1"}, "no number is named test_*"),
        (4, {"mean_sharpe": "good"}, "no number is named mean_*"),
        (4, {"mean_sharpe": True}, "no number is named mean_*"),
    ],
)
def test_without_a_workload_a_missing_metric_is_noted(inspect, place, changes, seen):
    records = list(WHOLE)
    records[place] = records[place] | changes

    report = inspect(*records)

    assert report.valid
    (note,) = report.notes
    assert note.line == place + 1
    assert seen in str(note)


def test_without_a_workload_other_metrics_than_the_first_folds_are_noted(inspect):
    other = {"event": "fold_complete", "fold_id": 1, "test_sharpe": 0.5, "test_mae": 1}

    report = inspect(*WHOLE[:-1], other, END)

    assert report.valid
    (note,) = report.notes
    assert note.line == 5
    assert "the first fold has test_sharpe, test_sortino, but this one test_mae" in note.what


def test_written_events_are_valid_without_a_workload(tmp_path):
    """LOG-1: every event type with its declared fields alone."""
    values = {"integer": 1, "number": 0.5, "string": "t", "list of strings": ["a"], "mapping": {}}
    with EventLog(tmp_path / "log") as log:
        for event, fields in EVENT_FIELDS.items():
            log.write(event, **{name: values[kind] for name, kind in fields.items()})

    report = inspect_log(tmp_path / "log", test_metrics=None, headline=None)

    assert report.valid, report.problems
    assert set(report.counts) == set(EVENT_FIELDS)
    assert [note.event for note in report.notes] == ["fold_complete", "experiment_complete"]


def test_with_a_workload_its_own_metrics_are_needed(inspect):
    report = inspect(*WHOLE, test_metrics=("test_rmse",), headline="mean_rmse")

    assert [(p.line, p.field) for p in report.problems] == [(4, "test_rmse"), (5, "mean_rmse")]
    assert inspect(*WHOLE, test_metrics=("test_sharpe",), headline="mean_sharpe").valid


@pytest.mark.parametrize(
    ("records", "begun"),
    [
        (WHOLE[:4], ["experiment_start"]),
        (WHOLE[:3], ["experiment_start", "fold_start"]),
        ((FOLD, EPOCH), ["fold_start"]),
        ((FOLD, EPOCH, FOLD_END), []),
        ((FOLD | {"seed": 1}, FOLD | {"seed": 2}, FOLD_END | {"seed": 2}), ["fold_start"]),
        ((FOLD | {"seed": 1}, FOLD | {"fold_id": 1}, FOLD_END), ["fold_start"]),
        (WHOLE_GATE[:3], ["gate_start"]),
        ((GATE, CHECK, STOPPED), []),
        ((*WHOLE_GATE, GATE), ["gate_start"]),
        ((STOPPED,), []),
    ],
)
def test_missing_end_event_makes_a_log_incomplete_not_invalid(inspect, records, begun):
    report = inspect(*records)

    assert report.valid, report.problems
    assert [problem.event for problem in report.gaps] == begun
    assert report.complete == (not begun)


def test_an_experiment_that_only_began_is_incomplete(inspect):
    report = inspect(WHOLE[0])

    assert report.valid
    assert not report.complete
    assert [str(gap) for gap in report.gaps] == [
        "line 1, experiment_start: no experiment_complete follows"
    ]


def test_folds_that_are_counted_and_missing_make_it_incomplete(inspect):
    report = inspect(*WHOLE[:-1], END | {"total_folds": 3})

    assert not report.complete
    assert "total_folds is 3, but only these folds have a fold_complete: 0" in str(report.gaps[0])


def test_epochs_of_nothing_that_began_are_incomplete(inspect):
    assert not inspect(EPOCH).complete


PHASES = (
    {"phase": "poc_start", "timestamp": "2026-01-01T00:00:00Z"},
    {"phase": "poc_complete", "timestamp": "2026-01-01T00:00:09Z"},
)


@pytest.mark.parametrize("end", ["poc_complete", "poc_end", "poc_stopped"])
def test_a_log_that_names_its_events_by_phase_is_read(inspect, end):
    report = inspect(PHASES[0], {"phase": end})

    assert report.valid
    assert report.complete
    assert report.counts == {"poc_start": 1, end: 1}
    assert "not an event type" in str(report.notes[0])


def test_a_phase_without_its_end_is_incomplete(inspect):
    report = inspect(PHASES[0])

    assert report.valid
    assert [gap.event for gap in report.gaps] == ["poc_start"]


def test_a_phase_that_sluice_knows_needs_its_fields(inspect):
    report = inspect({"phase": "epoch_complete", "epoch": 1})

    assert [problem.field for problem in report.problems] == ["train_loss", "val_loss"]


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_a_incomplete_last_line_is_reported_and_nothing_else_changes(inspect, cut):
    line = json.dumps(END)[:-cut]

    report = inspect(*WHOLE[:-1], text=line)

    assert report.valid
    assert report.torn_line == line
    assert not report.complete


def test_a_line_before_the_last_that_is_no_event_is_a_problem(inspect):
    report = inspect(START, text='Traceback (most recent call last):\n["a"]\n' + json.dumps(END))

    assert [(p.line, p.event) for p in report.problems] == [(2, ""), (3, "")]
    assert "must be one JSON object, got 'Traceback" in report.problems[0].what
    assert report.counts == {"experiment_start": 1, "experiment_complete": 1}


@pytest.mark.parametrize("written", ['"NaN"', "NaN", "1e999", '"-Infinity"'])
def test_non_finite_numbers_are_reported_in_every_notation(inspect, written):
    text = f'{{"event":"fold_complete","fold_id":0,"test_loss":{written},"grad":{written}}}\n'

    report = inspect(text=text)

    assert report.valid, report.problems
    assert [(p.line, p.event, p.field) for p in report.non_finite] == [
        (1, "fold_complete", "test_loss"),
        (1, "fold_complete", "grad"),
    ]


def test_a_summary_that_says_nan_stays_text(tmp_path, clock):
    path = tmp_path / "gate.ndjson"
    with EventLog(path, clock=clock) as log:
        log.write(**CHECK_END)
        log.write("epoch_complete", epoch=1, train_loss=math.nan, val_loss=1.0)

    check, epoch = read_events(path).events
    assert check["summary"] == "NaN"
    assert math.isnan(epoch["train_loss"])
    assert validate_log(path, test_metrics=(), headline="").num_non_finite == 1


NO_LOGS = {
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
    ("kind", "content"), [(kind, content) for kind in NO_LOGS for content in NO_LOGS[kind]]
)
def test_each_mistake_is_one_problem_of_its_kind_with_its_own_response(tmp_path, kind, content):
    """LOG-1, RESP-1: a table or a binary file is told from an event that lacks a field."""
    (tmp_path / "log").write_bytes(content)

    report = inspect_log(tmp_path / "log", test_metrics=None, headline=None)

    assert [problem.kind for problem in report.problems] == [kind]
    assert report.num_problems == 1
    assert report.torn_line is None
    response = respond_to_log_problem(kind)
    usual = ("missing field", "wrong type")
    assert (response.fix == find_fault("log validation failed").fix) == (kind in usual)
    with pytest.raises(ContractError) as caught:
        validate_log(tmp_path / "log", test_metrics=None, headline=None)
    assert (caught.value.cause, caught.value.fix) == (response.cause, response.fix)


def test_table_in_place_of_a_log_is_reported_with_its_first_line(tmp_path):
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
def test_marks_line_ends_and_blank_lines_of_other_systems_do_no_harm(tmp_path, content):
    (tmp_path / "log").write_bytes(content)

    report = inspect_log(tmp_path / "log", test_metrics=None, headline=None)

    assert report.valid
    assert report.torn_line is None


@pytest.mark.parametrize("content", [bytes(range(256)) * 40, b"[" * 100_000, b'{"event": 3}\n'])
def test_a_file_that_is_no_log_is_invalid_and_not_a_crash(tmp_path, content):
    (tmp_path / "log").write_bytes(content)

    assert not inspect_log(tmp_path / "log", test_metrics=None, headline=None).valid


def test_many_problems_are_all_counted_and_the_first_kept(inspect):
    report = inspect(*[{"event": "epoch_complete"}] * 1500)

    assert report.num_problems == 4500
    assert len(report.problems) == 1000
    assert report.problems[-1].line == 334


def test_the_message_says_how_many_more(tmp_path):
    (tmp_path / "log").write_text('{"event":"epoch_complete"}\n' * 3)

    with pytest.raises(ContractError, match=r"line 1, epoch_complete: .*\(and 4 more\)"):
        validate_log(tmp_path / "log", test_metrics=None, headline=None)


def test_a_folder_is_no_log(tmp_path):
    with pytest.raises(StorageError, match="Cannot read the log"):
        inspect_log(tmp_path, test_metrics=None, headline=None)


def test_more_bad_lines_never_make_fewer_problems(inspect):
    bad = {k: v for k, v in EPOCH.items() if k != "val_loss"}
    counts = [inspect(*[EPOCH] * (5 - n), *[bad] * n).num_problems for n in range(6)]

    assert counts == [0, 1, 2, 3, 4, 5]
