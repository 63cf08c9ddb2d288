"""POC-2, GRAD-1: one backward pass reaches every trainable parameter."""

import math

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, SettingsError
from sluice.base.seeding import deterministic
from sluice.failfast.gradients.gradient_flow import check_gradient_flow
from sluice.failfast.gradients.norms import validate_gradients
from sluice.models.settings import ModelSettings
from tests.support import failfast_workloads as planted


@pytest.fixture
def check(load_train_examples, settings, model, training):
    def run(workload, *, model_settings=model, training=training, settings=settings, seed=0):
        train = load_train_examples(workload)
        with deterministic():  # as the gate runs its checks
            return check_gradient_flow(
                workload, model_settings, training, train, settings, seed=seed
            )

    return run


@pytest.mark.parametrize("architecture", ["gru", "lstm", "slstm", "linear"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_healthy_model_passes(check, architecture, dropout):
    finding = check(
        planted.Signals(),
        model_settings=ModelSettings(architecture=architecture, dropout=dropout, layers=2),
    )

    assert finding.outcome == "pass", finding.summary
    assert finding.numbers["num_missing"] == 0
    assert finding.numbers["largest_parameter"]


@pytest.mark.parametrize(
    ("workload", "fault", "expected_text"),
    [
        (planted.AllFrozen, "detached loss", "the number of frozen parameters is 4"),
        (
            planted.DetachInTheMiddle,
            "detached subgraph",
            "network.first.weight, network.first.bias",
        ),
        (planted.UnusedLayer, "detached subgraph", "2 of 6 trainable parameters got no gradient"),
        (planted.NanGradients, "non-finite gradient", "network.first.weight"),
        (
            planted.LossPerExample,
            "wrong loss shape",
            "must return one number, got a tensor of (32,)",
        ),
        (planted.LossesReduced, "wrong loss shape", "one number per example, (32,), got ()"),
        (planted.LossAsFloat, "invalid loss type", "loss() must return a floating-point tensor"),
        (planted.LossIsNan, "non-finite loss", "The loss of the first batch is nan"),
        (planted.LossIgnoresOutput, "detached loss", "does not depend on any trainable parameter"),
    ],
)
def test_a_planted_defect_fails_and_is_named(check, workload, fault, expected_text):
    finding = check(workload())

    assert (finding.outcome, finding.fault) == ("fail", fault)
    assert expected_text in finding.summary


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "sgd",
            {"betas": [0.9, 0.99]},
            "does not take the argument 'betas'.*The optimizer takes: momentum",
        ),
        ("adam", {"betas": [0.9, 1.5]}, "Invalid beta parameter"),
        ("torch.optim:LBFGS", {}, "cannot take a step: .*closure"),
        ("torch.optim:Muon", {}, "Muon only supports 2D parameters"),  # the network has biases
    ],
)
def test_an_optimizer_that_cannot_train_is_rejected(check, training, name, arguments, message):
    changes = {"optimizer": name, "optimizer_arguments": arguments}
    with pytest.raises(SettingsError, match=message):
        check(planted.Signals(), training=training.model_copy(update=changes))


def test_dead_units_fail_by_name(check):
    finding = check(planted.DeadLayer())

    assert (finding.outcome, finding.fault) == ("fail", "dead units")
    assert "0 of 8 units of network.first are active" in finding.summary
    assert "network.first.weight, network.first.bias" in finding.summary


def test_a_network_with_only_zero_gradients_fails(check):
    class Flat(planted.Signals):
        def loss(self, output, y):  # noqa: ARG002
            return (output * 0).sum()

    finding = check(Flat())

    assert (finding.outcome, finding.fault) == ("fail", "zero gradients")


def test_large_gradients_of_a_large_loss_do_not_warn(check):
    """GRAD-1: a target in raw units makes both loss and gradients large."""
    assert check(planted.HugeLoss()).outcome == "pass"


def test_a_large_gradient_warns_and_is_named(check):
    finding = check(planted.Steep())

    assert (finding.outcome, finding.fault) == ("warn", "explosion")
    assert finding.numbers["largest_parameter"] in finding.summary


def test_the_check_is_reproducible_and_keeps_the_global_generator(check):
    torch.manual_seed(1)
    first = check(planted.Signals(), model_settings=ModelSettings(dropout=0.5))
    after = torch.rand(1)
    torch.manual_seed(1)

    assert torch.equal(after, torch.rand(1))
    assert check(planted.Signals(), model_settings=ModelSettings(dropout=0.5)) == first


def make_parameters(**gradients):
    """Yield named parameters with the given gradients; None leaves the gradient unset."""
    for name, gradient in gradients.items():
        parameter = nn.Parameter(torch.zeros(2))
        parameter.grad = None if gradient is None else torch.tensor(gradient)
        yield name, parameter


def test_norms_and_lists_of_unusual_gradients_are_correct():
    report = validate_gradients(
        make_parameters(a=[3.0, 4.0], b=[0.0, 0.0], c=None, d=[0.0, 101.0]), warn_norm=100.0
    )

    assert report.norms == {"a": 5.0, "b": 0.0, "d": 101.0}
    assert report.largest == ("d", 101.0)
    assert report.mean_norm == pytest.approx(106 / 3)
    assert (report.missing, report.zero, report.large) == (("c",), ("b",), ("d",))


def test_a_norm_whose_square_overflows_float32_is_finite():
    report = validate_gradients(make_parameters(a=[1e30, 0.0]), warn_norm=100.0)

    assert report.norms["a"] == pytest.approx(1e30)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_gradients_are_rejected_by_name(value):
    with pytest.raises(ContractError, match=r"in b, d \(2 of 3 gradients\)"):
        validate_gradients(
            make_parameters(a=[1.0, 1.0], b=[value, 0.0], d=[0.0, value]), warn_norm=100.0
        )


def test_no_parameters_give_an_empty_report():
    report = validate_gradients([], warn_norm=100.0)

    assert report.norms == {}
    assert report.largest == ("", 0.0)


def test_a_sparse_gradient_has_a_norm():
    embed = nn.Embedding(9, 2, sparse=True)
    embed(torch.tensor([3, 3])).sum().backward()
    report = validate_gradients(embed.named_parameters(), warn_norm=100.0)

    assert report.norms["weight"] == pytest.approx(8**0.5)
