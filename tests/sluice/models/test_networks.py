"""The built-in networks, compared with explicit formulas."""

import pytest
import torch

from sluice.models.linear import LastRowLinear
from sluice.models.recurrent import Recurrent
from sluice.models.settings import ModelSettings

X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))


def test_linear_network_reads_the_last_row_and_the_mean():
    network = LastRowLinear(3, 1)
    w, b = network.head.weight[0], network.head.bias[0]

    expected = X[:, -1] @ w[:3] + X.sum(dim=1) / 6 @ w[3:] + b

    torch.testing.assert_close(network(X)[:, 0], expected)


def test_gru_predicts_from_the_state_after_the_last_row():
    """Oracle: the GRU cell of torch, applied row by row."""
    network = Recurrent(3, 2, ModelSettings(hidden=5), cell="gru")
    core = network.core
    cell = torch.nn.GRUCell(3, 5)
    cell.load_state_dict({name.removesuffix("_l0"): t for name, t in core.state_dict().items()})

    state = torch.zeros(4, 5)
    for row in X.unbind(dim=1):
        state = cell(row, state)

    torch.testing.assert_close(network(X), network.head(state))


def test_lstm_depends_on_the_row_order():
    network = Recurrent(3, 1, ModelSettings(hidden=5), cell="lstm")

    assert isinstance(network.core, torch.nn.LSTM)
    assert not torch.allclose(network(X), network(X.flip(1)))


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_is_active_only_in_training_mode(layers):
    network = Recurrent(3, 1, ModelSettings(hidden=8, layers=layers, dropout=0.5), cell="gru")

    assert not torch.equal(network(X), network(X))
    network.eval()
    assert torch.equal(network(X), network(X))
