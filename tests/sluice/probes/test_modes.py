"""Evaluation mode: the same answer twice, whoever else is in the batch (TRACE-4)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.modes import probe_modes

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class AlwaysOn(nn.Dropout):
    def train(self, mode=True):  # noqa: ARG002 - that is the fault
        return super().train(True)


class TrainsForEver(nn.BatchNorm1d):
    def forward(self, x):
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, training=True)


def ask(between, x=X):
    return probe_modes(Net(between), x, seed=0)


@pytest.mark.parametrize(
    "between", [nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GELU()]
)
def test_sound_layers_pass(between):
    assert ask(between).outcome == "pass"


@pytest.mark.parametrize(
    ("between", "seen", "why"),
    [
        (AlwaysOn(0.5), "After eval(), 'between' is still in training mode", "overrides train()"),
        (nn.functional.dropout, "Two passes over the same 8 rows", "Dropout is still on"),
        (TrainsForEver(8), "changes 'between.running_mean'", "batch normalisation"),
        (
            nn.BatchNorm1d(8, track_running_stats=False),
            "The outputs of 4 rows change by up to",
            "check 'between'",
        ),
        (lambda h: h - h.mean(dim=0), "outputs of 4 rows change", "normalisation over rows"),
    ],
)
def test_each_fault_is_named(between, seen, why):
    answer = ask(between)

    assert answer.outcome == "fail"
    assert seen in answer.seen
    assert why in answer.why
    assert answer.fix


def test_a_non_finite_network_decides_nothing():
    answer = ask(lambda h: h / 0)

    assert answer.outcome == "insufficient"
    assert "NaN or infinite" in answer.seen


def test_numbers_agree_with_their_nouns():
    pair = nn.Sequential(nn.ReLU(), AlwaysOn(0.5), AlwaysOn(0.5))
    assert "'between.1', 'between.2' are still in training mode" in ask(pair).seen
    assert "the outputs of 1 row are the same" in ask(nn.ReLU(), X[:2]).seen


def test_what_decides_nothing_says_so():
    assert ask(lambda h: h.mean(dim=0, keepdim=True)).outcome == "insufficient"
    assert ask(torch.zeros_like).outcome == "insufficient"


def test_network_and_caller_are_left_alone():
    network, state = Net(TrainsForEver(8)), torch.get_rng_state()
    state = torch.get_rng_state()

    probe_modes(network, X, seed=0)

    assert network.training
    assert torch.equal(network.between.running_mean, torch.zeros(8))
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_input_is_refused():
    with pytest.raises(ContractError, match="at least 2 rows"):
        ask(nn.ReLU(), X[:1])
    network = Net(nn.ReLU())
    network.cut = network.first(X)
    with pytest.raises(ContractError, match="cannot be copied"):
        probe_modes(network, X, seed=0)
