"""The probe for outputs in evaluation mode that are random or depend on the batch (TRACE-4)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.modes import probe_modes

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


class TwoLayers(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class AlwaysDropout(nn.Dropout):
    def train(self, mode=True):  # noqa: ARG002 - that is the fault
        return super().train(True)


class TrainingModeBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, training=True)


def run_probe(between, x=X):
    return probe_modes(TwoLayers(between), x, seed=0)


@pytest.mark.parametrize(
    "between", [nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GELU()]
)
def test_deterministic_layers_pass(between):
    assert run_probe(between).outcome == "pass"


@pytest.mark.parametrize(
    ("between", "message", "cause"),
    [
        (
            AlwaysDropout(0.5),
            "After eval(), 'between' is still in training mode",
            "overrides train()",
        ),
        (nn.functional.dropout, "Two passes over the same 8 rows", "Dropout is still on"),
        (TrainingModeBatchNorm(8), "changes 'between.running_mean'", "batch normalisation"),
        (
            nn.BatchNorm1d(8, track_running_stats=False),
            "The outputs of 4 rows change by up to",
            "check 'between'",
        ),
        (lambda h: h - h.mean(dim=0), "outputs of 4 rows change", "normalisation over rows"),
    ],
)
def test_each_fault_is_reported_with_its_cause(between, message, cause):
    result = run_probe(between)

    assert result.outcome == "fail"
    assert message in result.seen
    assert cause in result.why
    assert result.fix


def test_a_network_with_nonfinite_outputs_is_insufficient():
    result = run_probe(lambda h: h / 0)

    assert result.outcome == "insufficient"
    assert "NaN or infinite" in result.seen


def test_messages_use_singular_and_plural():
    two_faults = nn.Sequential(nn.ReLU(), AlwaysDropout(0.5), AlwaysDropout(0.5))
    assert "'between.1', 'between.2' are still in training mode" in run_probe(two_faults).seen
    assert "the outputs of 1 row are the same" in run_probe(nn.ReLU(), X[:2]).seen


def test_constant_outputs_or_a_single_output_row_are_insufficient():
    assert run_probe(lambda h: h.mean(dim=0, keepdim=True)).outcome == "insufficient"
    assert run_probe(torch.zeros_like).outcome == "insufficient"


def test_equal_rows_are_insufficient():
    result = run_probe(nn.ReLU(), X[:1].expand(4, -1))

    assert result.outcome == "insufficient"
    assert "second half of the rows equals the first half" in result.seen
    assert "rows that differ" in result.fix


def test_the_probe_changes_neither_the_network_nor_the_random_state():
    network = TwoLayers(TrainingModeBatchNorm(8))
    state = torch.get_rng_state()

    probe_modes(network, X, seed=0)

    assert network.training
    assert torch.equal(network.between.running_mean, torch.zeros(8))
    assert torch.equal(torch.get_rng_state(), state)


def test_invalid_arguments_are_rejected():
    with pytest.raises(ContractError, match="at least 2 rows"):
        run_probe(nn.ReLU(), X[:1])
    network = TwoLayers(nn.ReLU())
    network.cut = network.first(X)
    with pytest.raises(ContractError, match="cannot be copied"):
        probe_modes(network, X, seed=0)
