"""Traces of a candidate: errors that most trainings share, and replay pages (TRACE-15)."""

import pytest

from sluice.assets.replays import save_replays, shared_errors, trace_errors
from sluice.assets.resources import SluiceState
from sluice.reports.index import list_pages
from sluice.reports.page import html_page
from sluice.trace.diagnosis import diagnose
from sluice.trace.finding import TraceFinding
from sluice.training.members import Member
from tests.pipelines.conftest import home_at


def make_diagnoses(severity):
    finding = TraceFinding(
        rule="optimizer steps change the weights",
        fault="weights not updating",
        confidence=0.9,
        severity=severity,
        step=7,
        what="No weight moved.",
        cause="Nothing is learned.",
        fix="Look at the rate.",
        evidence={},
        contradicted_by="A weight that moved.",
    )
    return diagnose([finding])


def make_member(fold, severity=None, *, replay="page"):
    return Member(
        seed=0,
        fold_id=fold,
        weights="w",
        event_log="e",
        best_epoch=1,
        epochs_run=1,
        train_loss=1.0,
        val_loss=1.0,
        test_metrics={},
        trained_through="",
        seconds=1.0,
        diagnoses=() if severity is None else make_diagnoses(severity),
        replay=replay,
    )


@pytest.mark.parametrize(
    ("severities", "shared"),
    [
        (["error", "error", None], ("weights not updating",)),
        (["error", None], ()),
        (["error", None, None], ()),
        (["confirm", "warning", "confirm"], ()),
        ([None, None], ()),
        ([], ()),
    ],
)
def test_error_is_shared_when_most_trainings_have_it(severities, shared):
    members = [make_member(fold, severity) for fold, severity in enumerate(severities)]

    assert shared_errors(members) == shared


def test_trainings_without_a_trace_are_not_counted():
    members = [make_member(0, "error"), make_member(1, replay=""), make_member(2, replay="")]

    assert shared_errors(members) == ("weights not updating",)


def test_trace_error_names_training_step_and_fix():
    (common_finding,) = trace_errors(make_member(3, "error"))

    assert common_finding == (
        "seed 0 fold 3: weights not updating since step 7. No weight moved. Look at the rate. "
        "False alarm if: A weight that moved."
    )
    assert trace_errors(make_member(3, "warning")) == ()
    assert trace_errors(make_member(3, "error"), faults=("weights not updating",)) == (
        common_finding,
    )
    assert trace_errors(make_member(3, "error"), faults=("gradient underflow",)) == ()


def test_first_training_and_those_with_findings_have_a_page(tmp_path):
    state = SluiceState.at(home_at(tmp_path / "home"))
    page = state.store.put(html_page("Replay of -c", "<h1>Replay of -c </h1>").encode())
    members = [make_member(f, "confirm" if f == 2 else None, replay=page) for f in range(4)]
    traces = save_replays("echo", members, state, environ={})

    assert set(traces.replays) == {"seed 0 fold 0", "seed 0 fold 2"}
    assert all(url.endswith(".html") for url in traces.replays.values())
    assert sorted(listed.title for listed in list_pages(state.home.reports)) == [
        "Replay of echo seed 0 fold 0",
        "Replay of echo seed 0 fold 2",
    ]
    assert "since step 7: **weights not updating**" in traces.markdown
    assert traces.errors == ()
