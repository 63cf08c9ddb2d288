"""POC-11, POC-12: the table of checks, time limits, prerequisites and the receipt."""

import io
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from rich.console import Console

from sluice.base.errors import GateBlocked, SourceError
from sluice.base.receipts import require
from sluice.config.poc_settings import PocSettings, TimeLimit, TimeLimits
from sluice.data.schema import Column, Schema
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.gate.display import LiveLines, report_page
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.run import run_gate
from sluice.failfast.result import GateReport
from sluice.findings.check_outcome import CheckOutcome
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from tests.support import failfast_workloads as planted

SMALL_SETTINGS = PocSettings(mini_rows=128, mini_epochs=10)
SUBJECT = {"data": "d" * 64, "config": "c" * 64}
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)


DATA = ("data_loading", "raw_schema", "features")
MINIMUM = (
    *DATA,
    "instantiation",
    "gradient_flow",
    "event_log",
    "epoch_selector",
    "mini_training",
    "total_time",
)


@pytest.fixture
def gate(tmp_path, clock, model, training):
    reported = []

    def run(workload, *, level="minimum", checks=CHECKS, **changes):
        defaults = {
            "model_settings": model,
            "train_settings": training.model_copy(update={"batch_rows": 32}),
            "settings": SMALL_SETTINGS,
            "seed": 0,
            "folder": tmp_path,
            "clock": clock,
        }
        inputs = GateInputs(workload=workload, **defaults | changes)
        return run_gate(inputs, level=level, on_result=reported.append, checks=checks)

    run.reported = reported
    return run


def get_outcomes(report):
    return {result.check_id: result.outcome for result in report.results}


def get_result(report, check_id):
    return next(result for result in report.results if result.check_id == check_id)


def test_a_healthy_workload_passes(gate, tmp_path):
    report = gate(planted.Signals())

    assert report.passed
    assert set(get_outcomes(report).values()) == {"pass"}
    assert tuple(get_outcomes(report)) == MINIMUM
    assert tuple(gate.reported) == report.results
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bars_pass_with_default_settings(gate):
    from sluice.workloads.bars import BarsWorkload

    report = gate(
        BarsWorkload(),
        model_settings=ModelSettings(),
        train_settings=TrainSettings(),
        settings=PocSettings(),
    )

    assert report.passed, report.reason


@pytest.mark.parametrize(
    ("workload", "changes", "check_id", "expected_text", "fix"),
    [
        (
            planted.WrongInputSize,
            {},
            "instantiation",
            "shapes cannot be multiplied",
            "num_features",
        ),
        (planted.FlatOutput, {}, "instantiation", "got (32,)", "output_shape()"),
        (planted.NanWeights, {}, "instantiation", "network.first.weight", "initialisation"),
        (planted.BrokenModel, {}, "instantiation", "AttributeError", "named line"),
        (planted.NoExamples, {}, "features", "ValueError: the window is empty", "named line"),
        (planted.AllFrozen, {}, "gradient_flow", "no trainable parameter", "requires_grad"),
        (planted.DetachInTheMiddle, {}, "gradient_flow", "network.first.weight", "detach"),
        (planted.UnusedLayer, {}, "gradient_flow", "network.spare.weight", "forward()"),
        (planted.LossPerExample, {}, "gradient_flow", "must return one number", "mean()"),
        (planted.LossRaises, {}, "gradient_flow", "KeyError: 'no such class weight'", "named line"),
        (planted.SelectsLast, {}, "epoch_selector", "got epoch 200", "best_epoch"),
        (
            planted.Signals,
            {"train_settings": 10.0},
            "mini_training",
            "learning_rate 10",
            "Lower learning_rate",
        ),
        (
            planted.Signals,
            {"train_settings": 1e-9},
            "mini_training",
            "learning_rate 1e-09",
            "between 1e-4",
        ),
    ],
)
def test_each_planted_defect_is_caught_by_its_check(
    gate, training, workload, changes, check_id, expected_text, fix
):
    if "train_settings" in changes:
        changes = {
            "train_settings": training.model_copy(
                update={"learning_rate": changes["train_settings"]}
            )
        }

    report = gate(workload(), **changes)

    assert not report.passed
    assert [result.check_id for result in report.blocking_failures] == [check_id]
    failed = get_result(report, check_id)
    assert expected_text in failed.summary
    assert failed.cause
    assert fix in failed.fix


def test_an_exception_names_the_users_line(gate):
    summary = get_result(gate(planted.BrokenModel()), "instantiation").summary

    assert "failfast_workloads.py:" in summary
    assert "in BrokenNet.forward" in summary


def test_an_unknown_architecture_keeps_its_own_fix(gate):
    failed = get_result(
        gate(planted.Signals(), model_settings=ModelSettings(architecture="gruu")), "instantiation"
    )

    assert "'gru'" in failed.summary
    assert "Use one of these" in failed.fix


class NoFile(planted.Signals):
    def load_rows(self):
        raise SourceError("There is no file bars.csv.", fix="Correct 'uri'.")


class RaisesFileNotFoundError(planted.Signals):
    def load_rows(self):
        raise FileNotFoundError("bars.csv")


class NullInIndex(planted.Signals):
    def load_rows(self):
        rows = super().load_rows()
        return rows.set_index(rows["a"].where(rows.index != 3))


@pytest.mark.parametrize(
    ("workload", "changes", "check_id", "cause"),
    [
        (NoFile(), {}, "data_loading", ""),
        (
            planted.Signals(),
            {"model_settings": ModelSettings(architecture="lstn")},
            "instantiation",
            "",
        ),
        (planted.Signals(planted.SignalSettings(seq_len=5000)), {}, "features", ""),
        (RaisesFileNotFoundError(), {}, "data_loading", "raised an exception."),
        (NullInIndex(), {}, "data_loading", "The source changed"),
    ],
)
def test_only_exceptions_of_user_code_are_attributed_to_it(
    gate, workload, changes, check_id, cause
):
    failed = get_result(gate(workload, **changes), check_id)

    assert failed.outcome == "fail"
    assert failed.fix
    assert cause in failed.cause
    assert bool(failed.cause) == bool(cause)


class TextTarget(planted.Signals):
    feature_schema = Schema(columns=(Column(name="target", kind="string"),))

    def compute_features(self, raw):
        return super().compute_features(raw).assign(target=np.where(raw["a"] > 0, "dog", "cat"))


def test_text_target_is_reported_with_how_to_encode_it(gate):
    failed = get_result(gate(TextTarget()), "features")

    assert "The target 'target' must be numeric, got 'cat' at row 0 (label 0)" in failed.summary
    assert "classes to integers from 0" in failed.fix


def test_an_unwritable_folder_fails_only_the_event_log(gate, tmp_path):
    (tmp_path / "file").write_text("")

    report = gate(planted.Signals(), folder=tmp_path / "file")

    assert [result.check_id for result in report.blocking_failures] == ["event_log"]


def test_check_with_a_failed_prerequisite_is_skipped_with_a_reason(gate):
    report = gate(planted.FlatOutput())

    assert get_outcomes(report) == {
        **dict.fromkeys(DATA, "pass"),
        "instantiation": "fail",
        "gradient_flow": "skipped",
        "event_log": "pass",
        "epoch_selector": "pass",
        "mini_training": "skipped",
        "total_time": "pass",
    }
    assert "model_runs_on_real_batch" in get_result(report, "mini_training").summary


def test_a_report_with_a_skipped_check_has_not_passed(gate):
    report = gate(planted.Signals())
    skipped = report.results[0].model_copy(update={"outcome": "skipped"})

    assert not report.model_copy(update={"results": (skipped, *report.results[1:])}).passed


def test_too_few_rows_are_insufficient_and_do_not_pass(gate):
    report = gate(planted.Signals(planted.SignalSettings(num_rows=150)))

    assert not report.passed
    assert report.outcome == "insufficient"
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(report_page(report))
    assert f"The minimum gate is inconclusive: {report.counts_text}" in console.export_text()


def test_missing_folds_are_reported(gate):
    class NoFolds(planted.Signals):
        def plan_folds(self, _frame):
            return ()

    assert "At least one fold" in get_result(gate(NoFolds()), "features").summary


def limit_selector_time(typical_s, max_s):
    return SMALL_SETTINGS.model_copy(
        update={"times": TimeLimits(selector=TimeLimit(typical_s=typical_s, max_s=max_s))}
    )


def test_duration_above_the_typical_one_warns_and_passes(gate):
    # By the fake clock a check takes 0.001 s.
    report = gate(planted.Signals(), settings=limit_selector_time(0.0005, 10.0))

    assert get_outcomes(report)["epoch_selector"] == "warn"
    assert report.passed


def test_duration_above_the_maximum_fails_with_the_fix(gate):
    report = gate(planted.Signals(), settings=limit_selector_time(0.0004, 0.0005))

    failed = get_result(report, "epoch_selector")
    assert failed.outcome == "fail"
    assert "at most 0.0005 s is allowed" in failed.summary
    assert "profile" in failed.fix
    assert not report.passed


def test_failure_takes_precedence_over_the_time_limit(gate):
    failed = get_result(
        gate(planted.SelectsLast(), settings=limit_selector_time(0.0004, 0.0005)), "epoch_selector"
    )

    assert "is required, got" in failed.summary


def test_the_whole_gate_has_its_own_time_limit(gate):
    times = TimeLimits(whole_gate=TimeLimit(typical_s=0.001, max_s=0.005))

    report = gate(planted.Signals(), settings=SMALL_SETTINGS.model_copy(update={"times": times}))

    assert [result.check_id for result in report.blocking_failures] == ["total_time"]


def test_the_table_of_checks_is_complete_unique_and_in_order():
    """POC-12: the minimum gate has POC-1 to POC-5, the full gate POC-1 to POC-10 and POC-13."""
    minimum = {c.check_id for c in CHECKS if "minimum" in c.levels}
    full = {c.check_id for c in CHECKS if "full" in c.levels}

    assert minimum >= {
        "instantiation",
        "gradient_flow",
        "event_log",
        "epoch_selector",
        "mini_training",
    }
    assert full == minimum | {
        "look_ahead",
        "split_independence",
        "served_inputs",
        "signal",
        "overfit_one_batch",
        "predictions",
        "scoring",
        "checkpoint",
    }
    names = [c.name for c in CHECKS]
    assert len(set(names)) == len(names)
    for number, check in enumerate(CHECKS):
        assert set(check.needs) <= set(names[:number]), f"{check.name} needs a later check"


def test_interruption_by_the_user_is_not_a_failed_check(gate):
    def stop(_):
        raise KeyboardInterrupt

    checks = tuple(
        replace(c, function=stop) if c.check_id == "gradient_flow" else c for c in CHECKS
    )

    with pytest.raises(KeyboardInterrupt):
        gate(planted.Signals(), checks=checks)


def test_a_gate_with_a_warning_passes(gate):
    checks = tuple(
        replace(
            c, function=lambda _: CheckOutcome(outcome="warn", summary="Close.", fault="explosion")
        )
        if c.check_id == "gradient_flow"
        else c
        for c in CHECKS
    )

    assert gate(planted.Signals(), checks=checks).passed


def test_the_receipt_of_a_passed_gate_is_valid_only_for_its_subject(gate):
    receipt = gate(planted.Signals()).receipt(SUBJECT, CREATED_AT)

    assert require(receipt, gate="poc", subject=SUBJECT) is receipt
    with pytest.raises(GateBlocked, match="another data"):
        require(receipt, gate="poc", subject=SUBJECT | {"data": "e" * 64})


def test_the_receipt_of_a_failed_gate_is_rejected_with_the_reason(gate):
    receipt = gate(planted.UnusedLayer()).receipt(SUBJECT, CREATED_AT)

    with pytest.raises(
        GateBlocked, match=r"gradients_reach_all_parameters: .*network\.spare\.weight"
    ):
        require(receipt, gate="poc", subject=SUBJECT)


def test_receipt_digest_does_not_depend_on_durations(gate):
    first = gate(planted.Signals())
    with_warning = gate(planted.Signals(), settings=limit_selector_time(0.0005, 10.0))

    assert (
        first.receipt(SUBJECT, CREATED_AT).digest
        == with_warning.receipt(SUBJECT, CREATED_AT).digest
    )


def test_a_report_is_restored_from_its_json(gate):
    report = gate(planted.NanWeights())

    assert GateReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize("is_terminal", [True, False])
def test_live_lines_on_a_terminal_omit_passed_checks_if_a_report_follows(gate, is_terminal):
    report = gate(planted.FlatOutput())
    console = Console(width=160, file=io.StringIO(), force_terminal=is_terminal)

    with LiveLines(console, report_follows=True) as lines:
        for result in report.results:
            lines(result)

    shown = {r.name for r in report.results if r.name in console.file.getvalue()}
    passed = {r.name for r in report.results if r.passed}
    failed = {r.name for r in report.results if not r.passed and r.outcome != "skipped"}
    assert shown == (failed if is_terminal else failed | passed)


def test_report_page_shows_result_cause_and_fix(gate):
    report = gate(planted.FlatOutput())
    console = Console(width=160, record=True, file=io.StringIO())

    console.print(report_page(report))

    text = " ".join(console.export_text().split())
    failed = get_result(report, "instantiation")
    assert all(r.name in text for r in report.results)
    assert "2 checks not run: " in text
    assert ". Skipped, because model_runs_on_real_batch did not pass" in text
    assert f"result: {failed.summary} cause: {failed.cause} fix: {failed.fix}" in text
    assert f"The minimum gate failed: {report.counts_text}" in text
