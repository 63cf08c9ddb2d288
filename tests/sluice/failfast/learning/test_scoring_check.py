"""POC-9: metrics and baseline are called before the training, as in the evaluation."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sluice.failfast.learning import scoring_check
from sluice.failfast.learning.scoring_check import check_scoring
from tests.support.digits_cnn import Digits
from tests.support.failfast_workloads import Signals


def check(workload, *, needs_baseline=True, guarded_metrics=()):
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    held_out = workload.examples(frame, fold.val)
    output = torch.zeros(held_out.y.shape if isinstance(workload, Signals) else (len(held_out), 10))
    return check_scoring(
        workload,
        output,
        held_out,
        frame,
        fold,
        needs_baseline=needs_baseline,
        guarded_metrics=guarded_metrics,
    )


def test_default_metrics_and_baseline_pass():
    finding = check(Signals())

    assert finding.outcome == "pass"
    assert finding.numbers == {"num_metrics": 1, "num_baseline_rows": 105}


def test_an_undefined_metric_is_reported_and_passes():
    class Undefined(Signals):
        def metrics(self, *_):
            return {"loss": np.float64(1.0), "sharpe": math.nan}

    finding = check(Undefined())

    assert finding.outcome == "pass"
    assert "undefined on these rows: sharpe" in finding.summary


@pytest.mark.parametrize(("shift", "is_near"), [(0.0, True), (0.02, True), (9.0, False)])
def test_a_loss_close_to_the_best_simple_rule_is_not_reported_as_higher(
    shift, is_near, monkeypatch
):
    workload = Signals()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    held_out = workload.examples(frame, fold.val)
    baseline = SimpleNamespace(name="linear", losses={"mean": 4.01, "linear": 4.0})
    monkeypatch.setattr(scoring_check, "best_rule", lambda *_: baseline)
    output = held_out.y + 2 + shift  # a loss of 4, 4.08 or 121

    finding = check_scoring(workload, output, held_out, frame, fold, needs_baseline=True)

    assert ("has a clearly lower loss of 4." not in finding.summary) == is_near


@pytest.mark.parametrize(
    ("returned", "expected_text"),
    [
        (3.0, "got 'float'"),
        ({"loss": "low"}, "got {'loss': 'low'}"),
        ({"loss": torch.zeros(3)}, "one number for each name"),
        ({"accuracy": 1.0}, "headline metric 'loss', got accuracy"),
        ({}, "got nothing"),
    ],
)
def test_metrics_that_cannot_be_compared_fail(returned, expected_text):
    class Wrong(Signals):
        def metrics(self, *_):
            return returned

    finding = check(Wrong())

    assert finding.outcome == "fail"
    assert expected_text in finding.summary
    assert "method" in finding.response[1]


def test_an_unknown_guarded_metric_fails_and_lists_the_available_ones():
    class Scored(Signals):
        def metrics(self, *_):
            return {"loss": 1.0, "rmse": 1.0}

    assert check(Scored(), guarded_metrics=("rmse",)).outcome == "pass"
    finding = check(Scored(), guarded_metrics=("rsme",))

    assert finding.outcome == "fail"
    assert "does not return 'rsme'. Did you mean 'rmse'?" in finding.summary
    assert "Available: loss, rmse." in finding.summary
    assert "guards.metrics" in finding.fix


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        (lambda baseline: baseline[:-1], "(105, 1) for the test rows, got (104, 1)"),
        (lambda baseline: baseline.squeeze(1), "got (105,)"),
        (lambda baseline: baseline.numpy(), "got ndarray"),
        (lambda baseline: baseline / 0, "105 of 105 predictions of baseline() are not finite"),
    ],
)
def test_a_baseline_that_cannot_be_compared_fails(change, expected_text):
    class Wrong(Signals):
        def baseline(self, frame, fold):
            return change(super().baseline(frame, fold))

    assert expected_text in check(Wrong()).summary


def test_the_default_baseline_of_classes_is_their_log_frequency():
    workload = Digits()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    train, test = (workload.examples(frame, rows).y for rows in (fold.train, fold.test))

    baseline = workload.baseline(frame, fold)

    counts = np.array([(train == digit).sum() for digit in range(10)]) + 1
    np.testing.assert_allclose(baseline[0].exp(), counts / counts.sum(), rtol=1e-6)
    assert baseline.shape == (len(test), 10)
    assert float(workload.losses(baseline, test).mean()) == pytest.approx(math.log(10), rel=0.02)
    assert check(workload).outcome == "pass"


@pytest.mark.parametrize(("needs_baseline", "outcome"), [(True, "fail"), (False, "warn")])
def test_an_unsuitable_default_baseline_fails_only_where_one_is_needed(needs_baseline, outcome):
    class MeanAndDeviation(Signals):
        def output_shape(self, y):
            return (len(y), 2)

    finding = check(MeanAndDeviation(), needs_baseline=needs_baseline)

    assert finding.outcome == outcome
    assert "Sluice's default" in finding.summary
    assert "Write baseline()" in finding.fix


def test_one_dimensional_targets_have_one_loss_each():
    y = torch.tensor([1.0, 2.0, 3.0])

    assert Signals().losses(y + 2, y).tolist() == [4.0, 4.0, 4.0]
