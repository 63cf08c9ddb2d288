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


def test_defaults_pass():
    finding = check(Signals())

    assert finding.outcome == "pass"
    assert finding.numbers == {"num_metrics": 1, "num_baseline_rows": 105}


def test_a_metric_that_is_not_defined_is_reported_and_passes():
    class Undefined(Signals):
        def metrics(self, *_):
            return {"loss": np.float64(1.0), "sharpe": math.nan}

    finding = check(Undefined())

    assert finding.outcome == "pass"
    assert "undefined on these rows: sharpe" in finding.summary


@pytest.mark.parametrize(("shift", "is_near"), [(0.0, True), (0.02, True), (9.0, False)])
def test_a_loss_near_that_of_the_best_rule_is_not_called_higher(shift, is_near, monkeypatch):
    workload = Signals()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    held_out = workload.examples(frame, fold.val)
    rule = SimpleNamespace(name="linear", losses={"mean": 4.01, "linear": 4.0})
    monkeypatch.setattr(scoring_check, "best_rule", lambda *_: rule)
    output = held_out.y + 2 + shift  # a loss of 4, 4.08 or 121

    finding = check_scoring(workload, output, held_out, frame, fold, needs_baseline=True)

    assert ("clearly higher than the 4 of" not in finding.summary) == is_near


@pytest.mark.parametrize(
    ("returned", "seen"),
    [
        (3.0, "got 'float'"),
        ({"loss": "low"}, "got {'loss': 'low'}"),
        ({"loss": torch.zeros(3)}, "one number for each name"),
        ({"accuracy": 1.0}, "headline metric 'loss', got accuracy"),
        ({}, "got nothing"),
    ],
)
def test_metrics_that_cannot_be_compared_fail(returned, seen):
    class Wrong(Signals):
        def metrics(self, *_):
            return returned

    finding = check(Wrong())

    assert finding.outcome == "fail"
    assert seen in finding.summary
    assert "method" in finding.response[1]


def test_a_guarded_metric_that_the_workload_does_not_have_fails_with_the_available_ones():
    class Scored(Signals):
        def metrics(self, *_):
            return {"loss": 1.0, "rmse": 1.0}

    assert check(Scored(), guarded_metrics=("rmse",)).outcome == "pass"
    finding = check(Scored(), guarded_metrics=("rsme",))

    assert finding.outcome == "fail"
    assert "does not have the metric 'rsme'. Did you mean 'rmse'?" in finding.summary
    assert "Available: loss, rmse." in finding.summary
    assert "guards.metrics" in finding.fix


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda rule: rule[:-1], "(105, 1) for the test rows, got (104, 1)"),
        (lambda rule: rule.squeeze(1), "got (105,)"),
        (lambda rule: rule.numpy(), "got ndarray"),
        (lambda rule: rule / 0, "105 of 105 predictions of baseline() are not finite"),
    ],
)
def test_a_baseline_that_cannot_be_compared_fails(change, seen):
    class Wrong(Signals):
        def baseline(self, frame, fold):
            return change(super().baseline(frame, fold))

    assert seen in check(Wrong()).summary


def test_the_default_baseline_of_classes_is_the_log_share_of_each():
    workload = Digits()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]
    train, test = (workload.examples(frame, rows).y for rows in (fold.train, fold.test))

    rule = workload.baseline(frame, fold)

    counts = np.array([(train == digit).sum() for digit in range(10)]) + 1
    np.testing.assert_allclose(rule[0].exp(), counts / counts.sum(), rtol=1e-6)
    assert rule.shape == (len(test), 10)
    assert float(workload.losses(rule, test).mean()) == pytest.approx(math.log(10), rel=0.02)
    assert check(workload).outcome == "pass"


@pytest.mark.parametrize(("needs_baseline", "outcome"), [(True, "fail"), (False, "warn")])
def test_a_default_that_does_not_fit_stops_only_what_needs_it(needs_baseline, outcome):
    class MeanAndDeviation(Signals):
        def output_shape(self, y):
            return (len(y), 2)

    finding = check(MeanAndDeviation(), needs_baseline=needs_baseline)

    assert finding.outcome == outcome
    assert "Sluice's default" in finding.summary
    assert "Write baseline()" in finding.fix


def test_targets_of_one_axis_have_a_loss_for_each():
    y = torch.tensor([1.0, 2.0, 3.0])

    assert Signals().losses(y + 2, y).tolist() == [4.0, 4.0, 4.0]
