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
        chosen = model if architecture is None else ModelSettings(architecture=architecture)
        return check_instantiation(
            workload, chosen, change(load_train_examples(workload)), settings, seed=0
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


class ClassNumbers(planted.Signals):
    """A classifier that forgot output_shape()."""

    scale_target = False

    def examples(self, frame, rows):
        found = super().examples(frame, rows)
        return Examples(x=found.x, y=(found.y[:, 0] > 7).long(), rows=found.rows)


class OneClassTooFew(ClassNumbers):
    def output_shape(self, y):
        return (len(y), 2)

    def build_model(self, num_features, num_outputs, settings):
        return super().build_model(num_features, num_outputs - 1, settings)


class FlatTargets(planted.Signals):
    def examples(self, frame, rows):
        found = super().examples(frame, rows)
        return Examples(x=found.x, y=found.y[:, 0], rows=found.rows)

    def build_model(self, num_features, num_outputs, settings):
        return nn.Sequential(super().build_model(num_features, num_outputs, settings))


class OneAxisTooMany(planted.Signals):
    def build_model(self, num_features, num_outputs, settings):
        model = super().build_model(num_features, num_outputs, settings)
        return nn.Sequential(model, nn.Unflatten(1, (num_outputs, 1)))


@pytest.mark.parametrize(
    ("workload", "seen", "advice", "other"),
    [
        (
            ClassNumbers,
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
def test_a_wrong_shape_comes_with_what_mends_it(check, workload, seen, advice, other):
    finding = check(workload())

    assert seen in finding.summary
    fix = finding.response[1]
    assert advice in fix
    assert other not in fix


def test_nan_in_the_weights_is_named(check):
    finding = check(planted.NanWeights())

    assert (finding.outcome, finding.fault) == ("fail", "non-finite output")
    assert "NaN or infinity in network.first.weight" in finding.summary


def test_nan_in_a_feature_is_named(check):
    class Unscaled(planted.Signals):
        scale_inputs = False

    def spoil(examples):
        examples.x[:, -1, 1] = torch.nan
        return examples

    finding = check(Unscaled(), change=spoil)

    assert finding.fault == "non-finite output"
    assert finding.summary.endswith("NaN or infinity in the input, in b.")


def test_a_wrong_input_size_is_raised_by_torch(check):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check(planted.WrongInputSize())


def test_too_few_rows_are_insufficient(check):
    finding = check(planted.Signals(planted.SignalSettings(num_rows=90)))

    assert (finding.outcome, finding.fault) == ("insufficient", "too few rows")


class Served(planted.Signals):
    """Serves the sign of its output."""

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


class LossesForgotten(Served):
    def served_losses(self, served, y):
        return (served - y.sign()).abs()


@pytest.mark.parametrize(
    ("workload", "seen", "fault"),
    [
        (
            ScalarServed,
            "served_output() of the workload must return a tensor of shape (32, ...), got ()",
            "shape mismatch",
        ),
        (NonFiniteServed, "must return finite values", "non-finite output"),
        (
            LossesForgotten,
            "served_losses() of the workload must return a tensor of shape (32,), got (32, 1)",
            "shape mismatch",
        ),
    ],
)
def test_a_wrong_response_is_found_before_the_training(check, workload, seen, fault):
    finding = check(workload())
    assert (finding.outcome, finding.fault) == ("fail", fault)
    assert seen in finding.summary

    unserved = type("Unserved", (workload,), {"is_served": False})
    assert check(unserved()).outcome == "pass"


def test_a_workload_may_serve_a_part_of_its_output(check):
    assert check(Served()).outcome == "pass"
