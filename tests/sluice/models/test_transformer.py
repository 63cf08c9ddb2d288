"""TRAIN-1: the Transformer encoder."""

import math

import pytest
import torch
from torch import nn

from sluice.base.errors import SettingsError
from sluice.base.seeding import deterministic
from sluice.models.settings import ModelSettings
from sluice.models.transformer import Transformer, encode_positions
from sluice.training.loop import mean_loss, train
from sluice.training.settings import TrainSettings
from tests.sluice.training.range_samples import examples

CPU = torch.device("cpu")
X = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1))


def make_transformer(
    num_outputs: int = 1, *, hidden: int = 8, seed: int = 0, **settings
) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(3, num_outputs, ModelSettings(hidden=hidden, **settings))


def compute_one_layer(network: Transformer, x: torch.Tensor, *, heads: int) -> torch.Tensor:
    """Return the output of a network with one layer, computed with softmax and matrix products."""
    layer, width = network.layers[0], network.width
    rows = network.entry(x) + encode_positions(x.shape[1], width, device=CPU)
    query, key, value = layer.self_attn.in_proj_weight.chunk(3)
    query_bias, key_bias, value_bias = layer.self_attn.in_proj_bias.chunk(3)
    normed = layer.norm1(rows)

    def split(weight, bias):
        return (normed @ weight.T + bias).unflatten(-1, (heads, width // heads)).transpose(1, 2)

    q, k, v = split(query, query_bias), split(key, key_bias), split(value, value_bias)
    shares = (q @ k.transpose(2, 3) / math.sqrt(width // heads)).softmax(dim=-1)
    rows = rows + layer.self_attn.out_proj((shares @ v).transpose(1, 2).flatten(2))
    rows = rows + layer.linear2(nn.functional.gelu(layer.linear1(layer.norm2(rows))))
    return network.head(network.norm(rows[:, -1]))


def test_one_layer_equals_its_formula():
    network = make_transformer(2)

    torch.testing.assert_close(network(X), compute_one_layer(network, X, heads=4))
    with torch.inference_mode():
        torch.testing.assert_close(network.eval()(X), compute_one_layer(network, X, heads=4))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 22])
def test_every_parameter_receives_a_gradient(layers, length):
    network = make_transformer(2, layers=layers, dropout=0.1)

    network(torch.randn(5, length, 3)).square().sum().backward()

    assert [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_output_depends_on_every_row_and_on_their_order():
    network = make_transformer().eval()
    x = X.clone().requires_grad_()

    network(x).sum().backward()

    assert (x.grad.abs().sum(dim=2) > 0).all()
    swapped = X[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.allclose(network(X), network(swapped), atol=1e-5)


def test_network_accepts_any_sequence_length():
    network = make_transformer()

    assert [network(torch.randn(2, length, 3)).shape for length in (1, 7, 90)] == [(2, 1)] * 3


def test_positions_are_counted_from_the_last_row():
    short, long = encode_positions(5, 8, device=CPU), encode_positions(9, 8, device=CPU)

    torch.testing.assert_close(long[-5:], short)
    torch.testing.assert_close(short[-1], torch.tensor([0.0] * 4 + [1.0] * 4))
    torch.testing.assert_close(short[-2, 0], torch.tensor(math.sin(1)))
    assert encode_positions(5, 7, device=CPU).shape == (5, 7)
    assert len({tuple(row.tolist()) for row in encode_positions(2_000, 8, device=CPU)}) == 2_000


def test_layers_have_different_initial_weights():
    first, second = make_transformer(layers=2).layers

    assert not torch.equal(first.linear1.weight, second.linear1.weight)


@pytest.mark.parametrize(
    ("hidden", "heads", "message"),
    [
        (30, 4, "got hidden 30 with heads 4: set hidden to 28 or 32"),
        (3, 4, "set hidden to 4"),
        (32, 5, "got hidden 32 with heads 5: set hidden to 30 or 35"),
    ],
)
def test_width_that_is_not_a_multiple_of_heads_is_rejected(hidden, heads, message):
    """TUNE-2: other architectures ignore the number of heads."""
    values = {"architecture": "transformer", "hidden": hidden, "heads": heads}
    with pytest.raises(SettingsError, match=message):
        ModelSettings.parse(values, where="model")
    ModelSettings.parse(values | {"architecture": "lstm"}, where="model")


def test_number_of_heads_changes_the_output():
    network, fewer = make_transformer(heads=2), make_transformer()

    torch.testing.assert_close(network(X), compute_one_layer(network, X, heads=2))
    assert not torch.allclose(network(X), fewer(X))


def test_dropout_is_active_only_in_training_mode():
    network = make_transformer(dropout=0.5)

    assert not torch.equal(network(X), network(X))
    network.eval()
    assert torch.equal(network(X), network(X))


@pytest.mark.slow
def test_transformer_learns_positions_with_reproducible_bits():
    """The target is in the first of six rows, which only attention by position finds."""
    rows = examples(600, length=6)
    settings = TrainSettings(max_epochs=12, batch_rows=32, learning_rate=3e-3)

    def fit() -> tuple[float, torch.Tensor]:
        network = make_transformer(hidden=16, dropout=0.0)
        squared_losses = lambda out, y: (out - y).square().mean(dim=1)  # noqa: E731
        with deterministic():
            for _ in train(
                network,
                lambda out, y: squared_losses(out, y).mean(),
                squared_losses,
                rows,
                rows,
                settings,
                seed=1,
            ):
                pass
            loss = mean_loss(network, squared_losses, rows)
        return loss, nn.utils.parameters_to_vector(network.parameters())

    (loss, weights), (again, same) = fit(), fit()

    assert loss < 0.1 * float(rows.y.var())
    assert loss == again
    assert torch.equal(weights, same)
