"""TRAIN-1: recomputed activations give the same numbers with less memory."""

import contextlib

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.base.seeding import deterministic
from sluice.models.build import build_network
from sluice.models.settings import ModelSettings
from sluice.training.loop import train
from sluice.training.recompute import recomputable_modules, recomputing
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from tests.sluice.training.test_loop import loss_of, losses_of, make_model, run, timeless, vector


def sequences(num_rows: int, seed: int) -> Examples:
    x = torch.randn(num_rows, 6, 4, generator=torch.Generator().manual_seed(seed))
    return Examples(x=x, y=x[:, -1, :1], rows=torch.arange(num_rows).numpy())


def network(architecture: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(
        4, 1, ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.3)
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["gru", "lstm", "slstm", "transformer"])
def test_same_bits_with_dropout(architecture, precision, device):
    def fitted(again):
        model = network(architecture)
        settings = TrainSettings(
            max_epochs=2,
            batch_rows=16,
            recompute_activations=again,
            precision=precision,
            device=device,
        )
        with deterministic():
            history = list(
                train(
                    model, loss_of, losses_of, sequences(48, 1), sequences(20, 2), settings, seed=3
                )
            )
        return vector(model), timeless(history)

    (plain, expected), (again, history) = fitted(False), fitted(True)

    assert torch.equal(again, plain)
    assert history == expected


def test_the_backward_pass_computes_the_layers_again_and_keeps_less():
    model = network("transformer").train()
    x = sequences(32, 1).x

    def kept(on):
        bytes_ = 0

        def pack(tensor):
            nonlocal bytes_
            bytes_ += tensor.nbytes
            return tensor

        with (
            recomputing(model, is_enabled=on),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        ):
            output = model(x)
        return output, bytes_

    calls = []
    model.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    _, plain = kept(False)
    with recomputing(model, is_enabled=True):
        model(x).sum().backward()
    assert len(calls) == 3  # once plainly, twice for one pass and its backward
    _, again = kept(True)
    assert again < plain / 3


def test_the_model_is_afterwards_what_it_was():
    model = network("lstm")
    with contextlib.suppress(KeyError), recomputing(model, is_enabled=True):
        assert "forward" in model.core.__dict__
        raise KeyError

    assert "forward" not in model.core.__dict__


def test_a_module_of_the_users_own_takes_part_when_marked():
    class Block(nn.Sequential):
        recompute = True

    model = nn.Sequential(Block(nn.Linear(4, 4), Block(nn.Tanh())), nn.GRU(4, 4))

    names = [name for name, _ in recomputable_modules(model)]
    assert names == ["0", "1"]  # the inner one is in the outer


def test_a_network_without_such_layers_is_refused():
    settings = TrainSettings(max_epochs=1, recompute_activations=True)
    with pytest.raises(ContractError, match="Sequential has none"):
        list(run(make_model(), settings))
