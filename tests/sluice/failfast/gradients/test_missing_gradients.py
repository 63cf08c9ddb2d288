"""POC-2: gradients that start at 0 are distinguished from gradients that stay 0."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.base.seeding import deterministic
from sluice.failfast.gradients.gradient_flow import check_gradient_flow
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from tests.support import failfast_workloads as planted
from tests.support import gradient_networks as networks


@pytest.fixture
def check(load_train_examples, settings, model, training):
    # The target's deviation of 4 makes norms near 100; other tests are about that.
    roomy = settings.model_copy(update={"warn_gradient_norm": 1e4})

    def run(workload, *, chosen=model, training=training, seed=0):
        with deterministic():  # as the gate runs its checks
            return check_gradient_flow(
                workload, chosen, training, load_train_examples(workload), roomy, seed=seed
            )

    return run


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", networks.HEALTHY)
def test_a_healthy_design_passes(check, name, seed):
    """What starts at 0 has moved after the probe's steps, and nobody is warned."""
    finding = check(networks.HEALTHY[name](), seed=seed)

    assert finding.outcome == "pass", finding.summary


@pytest.mark.parametrize("name", networks.UNUSUAL)
def test_an_unusual_design_at_most_warns(check, name):
    finding = check(networks.UNUSUAL[name]())

    assert finding.outcome in ("pass", "warn"), finding.summary
    assert finding.fault in (None, "zero gradients", "unintended freeze", "sequence of one row")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", networks.DEFECTS)
def test_a_layer_that_never_learns_fails_with_its_reason(check, name, seed):
    build, kinds, seen = networks.DEFECTS[name]
    finding = check(build(), seed=seed)

    assert finding.outcome == "fail", finding.summary
    assert finding.fault in kinds
    assert seen in finding.summary


def test_steps_are_taken_only_when_something_is_still(check, settings):
    still = check(networks.HEALTHY["residual gates at 0"]())

    assert check(networks.HEALTHY["mlp"]()).numbers["num_probe_steps"] == 0
    assert still.numbers["num_zero"] == 12
    assert still.numbers["num_probe_steps"] == settings.probe_steps


def test_the_steps_go_through_all_rows(check, settings, load_train_examples):
    class Spy(networks.NetworkWorkload):
        def loss(self, output, y):
            self.batches.append(y)
            return super().loss(output, y)

    workload = Spy(networks.HEALTHY["residual gates at 0"]().build)
    workload.batches = []
    check(workload)
    seen = torch.cat(workload.batches[1:])

    assert len(seen) == settings.probe_steps * settings.probe_batch_rows
    assert len(seen.unique()) == len(
        load_train_examples(workload)
    )  # fewer than the steps could take


@pytest.mark.parametrize("rate", [1e-9, 100.0])
def test_an_odd_learning_rate_is_left_to_the_mini_training(check, rate):
    finding = check(
        networks.HEALTHY["last layer at 0"](), training=TrainSettings(learning_rate=rate)
    )

    assert finding.outcome == "pass", finding.summary


def test_an_unused_layer_is_reported_to_never_run(check):
    assert "network.spare never ran." in check(planted.UnusedLayer()).summary
    assert "never ran" not in check(planted.DetachInTheMiddle()).summary


@pytest.mark.parametrize(
    ("frozen", "seen"),
    [
        ((), "2 of 4 parameters are frozen and not declared: 1.weight, 1.bias"),
        (("1.weight",), "1 of 4 parameters are frozen and not declared: 1.bias"),
        (("1.*", "stem.*"), "No parameter of the network matches 'stem.*' of frozen_parameters"),
    ],
)
def test_frozen_parameters_must_equal_the_declared_ones(check, frozen, seen):
    finding = check(networks.NetworkWorkload(networks.frozen_backbone, frozen=frozen))

    assert (finding.outcome, finding.fault) == ("fail", "unintended freeze")
    assert seen in finding.summary


def test_a_parameter_in_no_group_fails_by_name(check):
    def head_forgotten(network):
        return [{"params": network[1].parameters()}]

    finding = check(
        networks.NetworkWorkload(lambda: networks.mlp(nn.Tanh()), groups=head_forgotten)
    )

    assert (finding.outcome, finding.fault) == ("fail", "parameters not optimized")
    assert "2 of 4 trainable parameters are in no parameter group" in finding.summary
    assert "network.3.weight, network.3.bias" in finding.summary


def test_a_parameter_in_two_groups_fails_by_name(check):
    def twice(network):
        return [{"params": network.parameters()}, {"params": network[3].weight}]

    finding = check(networks.NetworkWorkload(lambda: networks.mlp(nn.Tanh()), groups=twice))

    assert (finding.outcome, finding.fault) == ("fail", "parameters not optimized")
    assert "listed twice in the parameter groups: network.3.weight" in finding.summary


def test_an_unknown_key_of_a_group_is_rejected(check):
    def typo(network):
        return [{"params": network.parameters(), "rate_shar": 0.1}]

    with pytest.raises(ContractError, match="Did you mean 'rate_share'"):
        check(networks.NetworkWorkload(lambda: networks.mlp(nn.Tanh()), groups=typo))


@pytest.mark.parametrize("architecture", ["lstm", "slstm"])
def test_recurrent_layers_report_their_gates_and_states(check, architecture):
    """GRAD-2 as part of POC-2."""
    chosen = ModelSettings(architecture=architecture, hidden=8, layers=2)
    numbers = check(planted.Signals(), chosen=chosen).numbers
    layers = {"lstm": ("core.l0", "core.l1"), "slstm": ("core.0", "core.1")}[architecture]

    for layer in layers:
        assert numbers[f"forget_bias_norm_network.{layer}"] > 0
        assert numbers[f"hidden_norm_network.{layer}"] > 0
    if architecture == "slstm":
        assert all(numbers[f"lowest_normaliser_network.{layer}"] >= 1 for layer in layers)
        assert all(numbers[f"highest_normaliser_network.{layer}"] <= 4 for layer in layers)


def test_no_hook_is_left(check):
    kept = []

    class Kept(planted.Signals):
        def build_model(self, *args):
            kept.append(super().build_model(*args))
            return kept[-1]

    check(Kept())

    assert not any(m._forward_hooks or m._forward_pre_hooks for m in kept[0].modules())
