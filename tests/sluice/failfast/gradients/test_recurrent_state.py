"""GRAD-2: gates and states of recurrent layers."""

import math

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.failfast.gradients.recurrent_report import judge_forget_gates, judge_normalisers
from sluice.failfast.gradients.recurrent_state import (
    record_normalisers,
    recurrent_gradients,
    slstm_normaliser_range,
)
from sluice.models.settings import ModelSettings
from sluice.models.slstm import SLSTM

X = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(2))


def test_the_forget_gate_is_the_second_quarter_of_the_bias():
    core = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    core(X)[0].sum().backward()
    first, second = recurrent_gradients(core)

    assert (first.layer, second.layer) == ("l0", "l1")
    slices = torch.cat([core.bias_ih_l1.grad[4:8], core.bias_hh_l1.grad[4:8]])
    assert second.forget_bias_norm == pytest.approx(float(slices.norm()))
    assert first.hidden_norm == pytest.approx(float(core.weight_hh_l0.grad.norm()))


def test_a_detached_forget_gate_has_no_gradient_and_warns():
    """The equations of an LSTM cell, with a detached forget gate."""
    cell = nn.LSTMCell(3, 4)
    h = c = torch.zeros(5, 4)
    for row in X.unbind(1):
        gates = row @ cell.weight_ih.T + cell.bias_ih + h @ cell.weight_hh.T + cell.bias_hh
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f).detach() * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    h.sum().backward()
    (gradients,) = recurrent_gradients(nn.ModuleDict({"cell": cell}))

    assert gradients.layer == "cell"
    assert gradients.forget_bias_norm == 0
    assert gradients.hidden_norm > 0
    assert judge_forget_gates([gradients]).outcome == "warn"


def test_a_window_of_one_row_gives_no_gradient_to_the_forget_gate():
    core = nn.LSTM(3, 4, batch_first=True)
    core(X[:, :1])[0].sum().backward()
    (gradients,) = recurrent_gradients(core)

    assert (gradients.forget_bias_norm, gradients.hidden_norm) == (0, 0)
    assert "l0" in judge_forget_gates([gradients]).summary


def test_a_bidirectional_gru_has_one_entry_per_direction_and_no_forget_gate():
    core = nn.GRU(3, 4, bidirectional=True, batch_first=True)
    core(X)[0].sum().backward()
    layers = recurrent_gradients(core)

    assert [layer.layer for layer in layers] == ["l0", "l0_reverse"]
    assert all(layer.forget_bias_norm is None and layer.hidden_norm > 0 for layer in layers)


def test_missing_bias_and_gradients_are_reported_as_none():
    core = nn.LSTM(3, 4, bias=False)

    assert recurrent_gradients(core)[0].model_dump() == {
        "layer": "l0",
        "forget_bias_norm": None,
        "hidden_norm": None,
    }
    assert judge_forget_gates(recurrent_gradients(core)) is None


def test_the_range_of_a_normaliser_is_its_minimum_and_maximum():
    value_range = slstm_normaliser_range("cell", torch.tensor([[1.0, 3.0], [0.5, 2.0]]))

    assert (value_range.lowest, value_range.highest, value_range.is_vanishing) == (0.5, 3.0, False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_normaliser_is_rejected(value):
    with pytest.raises(ContractError, match="state of cell must be finite, 1 of 2 values"):
        slstm_normaliser_range("cell", torch.tensor([1.0, value]))
    assert judge_normalisers({"cell": torch.tensor([value])})[1].outcome == "fail"


def test_an_empty_normaliser_is_rejected():
    with pytest.raises(ContractError, match="must not be empty"):
        slstm_normaliser_range("cell", torch.zeros(0, 3))


@pytest.mark.parametrize("value", [0.0, 1e-39, -1.0])
def test_a_vanishing_normaliser_warns(value):
    ranges, finding = judge_normalisers({"cell": torch.tensor([value, 1.0])})

    assert ranges[0].is_vanishing
    assert finding.outcome == "warn"


def test_normalisers_are_recorded_by_layer_and_hooks_are_removed():
    network = SLSTM(3, 1, ModelSettings(hidden=4, layers=2))
    with record_normalisers(network) as states:
        network(X)

    assert {name: tuple(s.shape) for name, s in states.items()} == {
        "core.0": (5, 6, 4),
        "core.1": (5, 6, 4),
    }
    assert not any(module._forward_hooks for module in network.modules())
    assert judge_normalisers(states)[1] is None
