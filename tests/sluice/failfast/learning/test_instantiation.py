"""POC-1: the model runs on a real batch and returns the required shape."""

import pytest
import torch
from torch import nn

from sluice.failfast.learning.instantiation import check_instantiation
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from tests.support import failfast_workloads as planted


@pytest.fixture
def check(load_train_examples, settings, model):
    def run(workload, *, change=lambda x: x, architecture=None):
        model_settings = model if architecture is None else ModelSettings(architecture=architecture)
        return check_instantiation(
            workload, model_settings, change(load_train_examples(workload)), settings, seed=0
        )

    return run


@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
def test_a_healthy_model_passes(check, architecture):
    finding = check(planted.Signals(), architecture=architecture)

    assert finding.outcome == "pass"
    assert finding.numbers["input_shape"] == "(32, 4, 3)"
    assert finding.numbers["output_shape"] == "(32, 1)"
    assert finding.numbers["num_features"] == 3


def test_the_number_of_parameters_is_counted(check):
    # 3 -> 8 -> 1 with biases.
    assert check(planted.OwnNet()).numbers["num_parameters"] == 3 * 8 + 8 + 8 + 1


def test_a_flat_output_is_a_shape_mismatch(check):
    finding = check(planted.FlatOutput())

    assert (finding.outcome, finding.fault) == ("fail", "shape mismatch")
    assert "must have the shape (32, 1) for targets of (32, 1), got (32,)" in finding.summary


class NoOutputShape(planted.Signals):
    """A classification workload without output_shape()."""

    scale_target = False

    def examples(self, frame, rows):
        examples = super().examples(frame, rows)
        return Examples(x=examples.x, y=(examples.y[:, 0] > 7).long(), rows=examples.rows)


class OneClassTooFew(NoOutputShape):
    def output_shape(self, y):
        return (len(y), 2)

    def build_model(self, num_features, num_outputs, settings):
        return super().build_model(num_features, num_outputs - 1, settings)


class FlatTargets(planted.Signals):
    def examples(self, frame, rows):
        examples = super().examples(frame, rows)
        return Examples(x=examples.x, y=examples.y[:, 0], rows=examples.rows)

    def build_model(self, num_features, num_outputs, settings):
        return nn.Sequential(super().build_model(num_features, num_outputs, settings))


class OneAxisTooMany(planted.Signals):
    def build_model(self, num_features, num_outputs, settings):
        model = super().build_model(num_features, num_outputs, settings)
        return nn.Sequential(model, nn.Unflatten(1, (num_outputs, 1)))


@pytest.mark.parametrize(
    ("workload", "expected_text", "advice", "other_advice"),
    [
        (
            NoOutputShape,
            "(32,) for targets of (32,), got (32, 1)",
            "write an output_shape()",
            "squeeze",
        ),
        (
            OneClassTooFew,
            "(32, 2) for targets of (32,), got (32, 1)",
            "arguments num_features",
            "of 1",
        ),
        (FlatTargets, "(32,) for targets of (32,), got (32, 1)", "last axis of 1", "classes"),
        (OneAxisTooMany, "(32, 1) for targets of (32, 1), got (32, 1, 1)", "squeeze", "last axis"),
    ],
)
def test_a_wrong_output_shape_is_reported_with_the_matching_fix(
    check, workload, expected_text, advice, other_advice
):
    finding = check(workload())

    assert expected_text in finding.summary
    fix = finding.response[1]
    assert advice in fix
    assert other_advice not in fix


def test_nan_in_the_weights_is_named(check):
    finding = check(planted.NanWeights())

    assert (finding.outcome, finding.fault) == ("fail", "non-finite output")
    assert "NaN or infinity in network.first.weight" in finding.summary


def test_nan_in_a_feature_is_named(check):
    class Unscaled(planted.Signals):
        scale_inputs = False

    def add_nan(examples):
        examples.x[:, -1, 1] = torch.nan
        return examples

    finding = check(Unscaled(), change=add_nan)

    assert finding.fault == "non-finite output"
    assert finding.summary.endswith("NaN or infinity in the input, in b.")


def test_a_wrong_input_size_is_raised_by_torch(check):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check(planted.WrongInputSize())


def test_too_few_rows_are_insufficient(check):
    finding = check(planted.Signals(planted.SignalSettings(num_rows=90)))

    assert (finding.outcome, finding.fault) == ("insufficient", "too few rows")


class Served(planted.Signals):
    """Serves the sign of the network's output."""

    def served_output(self, output, x):  # noqa: ARG002
        return output.sign()

    def served_losses(self, served, y):
        return (served - y.sign()).abs()[:, 0]


class ScalarServed(Served):
    def served_output(self, output, x):  # noqa: ARG002
        return output.mean()


class NonFiniteServed(Served):
    def served_output(self, output, x):  # noqa: ARG002
        return output / 0


class LossesOfWrongShape(Served):
    def served_losses(self, served, y):
        return (served - y.sign()).abs()


@pytest.mark.parametrize(
    ("workload", "expected_text", "fault"),
    [
        (
            ScalarServed,
            "served_output() of the workload must return a tensor of shape (32, ...), got ()",
            "shape mismatch",
        ),
        (NonFiniteServed, "must return finite values", "non-finite output"),
        (
            LossesOfWrongShape,
            "served_losses() of the workload must return a tensor of shape (32,), got (32, 1)",
            "shape mismatch",
        ),
    ],
)
def test_a_wrong_served_output_or_loss_fails_if_the_workload_is_served(
    check, workload, expected_text, fault
):
    finding = check(workload())
    assert (finding.outcome, finding.fault) == ("fail", fault)
    assert expected_text in finding.summary

    unserved = type("Unserved", (workload,), {"is_served": False})
    assert check(unserved()).outcome == "pass"


def test_the_served_output_may_differ_from_the_network_output(check):
    assert check(Served()).outcome == "pass"
