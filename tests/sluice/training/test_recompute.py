"""TRAIN-1: recomputing activations gives identical results with less memory."""

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
from tests.sluice.training.test_loop import (
    drop_seconds,
    loss_of,
    losses_of,
    make_model,
    run,
    vector,
)


def make_sequences(num_rows: int, seed: int) -> Examples:
    x = torch.randn(num_rows, 6, 4, generator=torch.Generator().manual_seed(seed))
    return Examples(x=x, y=x[:, -1, :1], rows=torch.arange(num_rows).numpy())


def make_network(architecture: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(
        4, 1, ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.3)
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ["gru", "lstm", "slstm", "transformer"])
def test_recomputing_with_dropout_gives_the_same_bits(architecture, precision, device):
    def fit(recompute):
        model = make_network(architecture)
        settings = TrainSettings(
            max_epochs=2,
            batch_rows=16,
            recompute_activations=recompute,
            precision=precision,
            device=device,
        )
        with deterministic():
            history = list(
                train(
                    model,
                    loss_of,
                    losses_of,
                    make_sequences(48, 1),
                    make_sequences(20, 2),
                    settings,
                    seed=3,
                )
            )
        return vector(model), drop_seconds(history)

    (plain, expected), (again, history) = fit(False), fit(True)

    assert torch.equal(again, plain)
    assert history == expected


def test_backward_pass_recomputes_layers_and_forward_saves_less():
    model = make_network("transformer").train()
    x = make_sequences(32, 1).x

    def count_saved_bytes(is_enabled):
        bytes_ = 0

        def pack(tensor):
            nonlocal bytes_
            bytes_ += tensor.nbytes
            return tensor

        with (
            recomputing(model, is_enabled=is_enabled),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        ):
            output = model(x)
        return output, bytes_

    calls = []
    model.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    _, plain = count_saved_bytes(False)
    with recomputing(model, is_enabled=True):
        model(x).sum().backward()
    assert len(calls) == 3  # once without recomputing, twice with it (forward and backward)
    _, recomputed = count_saved_bytes(True)
    assert recomputed < plain / 3


def test_forward_method_is_restored_after_an_error():
    model = make_network("lstm")
    with contextlib.suppress(KeyError), recomputing(model, is_enabled=True):
        assert "forward" in model.core.__dict__
        raise KeyError

    assert "forward" not in model.core.__dict__


def test_custom_module_is_recomputed_if_marked():
    class Block(nn.Sequential):
        recompute = True

    model = nn.Sequential(Block(nn.Linear(4, 4), Block(nn.Tanh())), nn.GRU(4, 4))

    names = [name for name, _ in recomputable_modules(model)]
    assert names == ["0", "1"]  # the inner block is part of the outer one


def test_network_without_recomputable_layers_is_rejected():
    settings = TrainSettings(max_epochs=1, recompute_activations=True)
    with pytest.raises(ContractError, match="Sequential has none"):
        list(run(make_model(), settings))
