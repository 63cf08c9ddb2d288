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
    # The target's standard deviation of 4 leads to norms near 100; other tests check that warning.
    settings_without_warning = settings.model_copy(update={"warn_gradient_norm": 1e4})

    def run(workload, *, model_settings=model, training=training, seed=0):
        with deterministic():  # as the gate runs its checks
            return check_gradient_flow(
                workload,
                model_settings,
                training,
                load_train_examples(workload),
                settings_without_warning,
                seed=seed,
            )

    return run


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", networks.HEALTHY)
def test_a_healthy_design_passes(check, name, seed):
    """Parameters that start at 0 change within the probe steps, so there is no warning."""
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
    build, faults, expected_text = networks.DEFECTS[name]
    finding = check(build(), seed=seed)

    assert finding.outcome == "fail", finding.summary
    assert finding.fault in faults
    assert expected_text in finding.summary


def test_probe_steps_are_taken_only_for_zero_gradients(check, settings):
    finding = check(networks.HEALTHY["residual gates at 0"]())

    assert check(networks.HEALTHY["mlp"]()).numbers["num_probe_steps"] == 0
    assert finding.numbers["num_zero"] == 12
    assert finding.numbers["num_probe_steps"] == settings.probe_steps


def test_probe_steps_use_all_rows(check, settings, load_train_examples):
    class RecordsTargets(networks.NetworkWorkload):
        def loss(self, output, y):
            self.batches.append(y)
            return super().loss(output, y)

    workload = RecordsTargets(networks.HEALTHY["residual gates at 0"]().build)
    workload.batches = []
    check(workload)
    targets = torch.cat(workload.batches[1:])

    assert len(targets) == settings.probe_steps * settings.probe_batch_rows
    # The train rows are fewer than the examples of all steps together.
    assert len(targets.unique()) == len(load_train_examples(workload))


@pytest.mark.parametrize("rate", [1e-9, 100.0])
def test_an_unsuitable_learning_rate_is_not_reported_by_this_check(check, rate):
    finding = check(
        networks.HEALTHY["last layer at 0"](), training=TrainSettings(learning_rate=rate)
    )

    assert finding.outcome == "pass", finding.summary


def test_an_unused_layer_is_reported_as_never_run(check):
    assert "network.spare never ran." in check(planted.UnusedLayer()).summary
    assert "never ran" not in check(planted.DetachInTheMiddle()).summary


@pytest.mark.parametrize(
    ("frozen", "expected_text"),
    [
        ((), "2 of 4 parameters are frozen and not declared: 1.weight, 1.bias"),
        (("1.weight",), "1 of 4 parameters are frozen and not declared: 1.bias"),
        (("1.*", "stem.*"), "No parameter of the network matches 'stem.*' of frozen_parameters"),
    ],
)
def test_frozen_parameters_must_equal_the_declared_ones(check, frozen, expected_text):
    finding = check(networks.NetworkWorkload(networks.frozen_backbone, frozen=frozen))

    assert (finding.outcome, finding.fault) == ("fail", "unintended freeze")
    assert expected_text in finding.summary


def test_a_parameter_in_no_group_fails_by_name(check):
    def only_first_layer(network):
        return [{"params": network[1].parameters()}]

    finding = check(
        networks.NetworkWorkload(lambda: networks.mlp(nn.Tanh()), groups=only_first_layer)
    )

    assert (finding.outcome, finding.fault) == ("fail", "parameters not optimized")
    assert "2 of 4 trainable parameters are in no parameter group" in finding.summary
    assert "network.3.weight, network.3.bias" in finding.summary


def test_a_parameter_in_two_groups_fails_by_name(check):
    def weight_in_two_groups(network):
        return [{"params": network.parameters()}, {"params": network[3].weight}]

    finding = check(
        networks.NetworkWorkload(lambda: networks.mlp(nn.Tanh()), groups=weight_in_two_groups)
    )

    assert (finding.outcome, finding.fault) == ("fail", "parameters not optimized")
    assert "listed twice in the parameter groups: network.3.weight" in finding.summary


def test_an_unknown_key_of_a_group_is_rejected(check):
    def misspelled_key(network):
        return [{"params": network.parameters(), "rate_shar": 0.1}]

    with pytest.raises(ContractError, match="Did you mean 'rate_share'"):
        check(networks.NetworkWorkload(lambda: networks.mlp(nn.Tanh()), groups=misspelled_key))


@pytest.mark.parametrize("architecture", ["lstm", "slstm"])
def test_recurrent_layers_report_their_gates_and_states(check, architecture):
    """GRAD-2 as part of POC-2."""
    model_settings = ModelSettings(architecture=architecture, hidden=8, layers=2)
    numbers = check(planted.Signals(), model_settings=model_settings).numbers
    layers = {"lstm": ("core.l0", "core.l1"), "slstm": ("core.0", "core.1")}[architecture]

    for layer in layers:
        assert numbers[f"forget_bias_norm_network.{layer}"] > 0
        assert numbers[f"hidden_norm_network.{layer}"] > 0
    if architecture == "slstm":
        assert all(numbers[f"lowest_normaliser_network.{layer}"] >= 1 for layer in layers)
        assert all(numbers[f"highest_normaliser_network.{layer}"] <= 4 for layer in layers)


def test_all_hooks_are_removed(check):
    models = []

    class KeepsModel(planted.Signals):
        def build_model(self, *args):
            models.append(super().build_model(*args))
            return models[-1]

    check(KeepsModel())

    assert not any(m._forward_hooks or m._forward_pre_hooks for m in models[0].modules())
