"""Dropout of recurrent layers on a GPU can be resumed from a checkpoint with identical masks."""

import pytest
import torch
from torch import nn

from sluice.base.seeding import deterministic
from sluice.models.build import build_network
from sluice.models.settings import ModelSettings
from sluice.training.cudnn_dropout import reseeded_cudnn_dropout
from sluice.training.loop import train
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from tests.sluice.training.test_loop import clone_state, drop_seconds, loss_of, losses_of, vector

CUDA = torch.device("cuda")


def make_sequences(num_rows: int, seed: int) -> Examples:
    x = torch.randn(num_rows, 6, 4, generator=torch.Generator().manual_seed(seed))
    return Examples(x=x, y=x[:, -1, :1], rows=torch.arange(num_rows).numpy())


def make_network(architecture: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(
        4, 1, ModelSettings(architecture=architecture, hidden=8, layers=2, dropout=0.3)
    )


def run(model, **options):
    settings = TrainSettings(max_epochs=3, batch_rows=16)
    rows = make_sequences(48, 1), make_sequences(20, 2)
    with deterministic():
        return drop_seconds(train(model, loss_of, losses_of, *rows, settings, seed=3, **options))


@pytest.fixture
def reseeded_devices(monkeypatch):
    """List the devices whose generator state is set again. CUDA is simulated."""
    states = {CUDA: torch.tensor([7])}
    seen = []

    def set_state(state, device):
        assert state is states[device]
        seen.append(device)

    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_rng_state", set_state)
    return seen


@pytest.mark.parametrize(
    ("layers", "rate", "device", "expected"),
    [(2, 0.3, "cuda", 3), (1, 0.0, "cuda", 0), (2, 0.0, "cuda", 0), (2, 0.3, "cpu", 0)],
)
def test_cudnn_dropout_is_reseeded_at_each_training_forward_pass(
    reseeded_devices, layers, rate, device, expected
):
    model = nn.Sequential(nn.GRU(4, 8, layers, dropout=rate))
    x = torch.zeros(5, 2, 4)

    with reseeded_cudnn_dropout(model, torch.device(device)):
        for _ in range(3):
            model(x)
        model.eval()
        model(x)
    model.train()
    model(x)

    assert reseeded_devices == [CUDA] * expected


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["gru", "lstm"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_resumed_gpu_training_with_dropout_has_identical_bits(architecture, step):
    whole, cut, resumed = (make_network(architecture) for _ in range(3))
    expected = run(whole)
    calls, kept = iter([False] * (step - 1) + [True]), []

    def stop(state):
        kept.append(clone_state(state))
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(cut, on_state=stop, is_due=calls.__next__)
    torch.rand(5, device=CUDA)  # a resuming process has another generator state
    rest = run(resumed, resume=kept[0])

    assert kept[0].steps == step
    assert rest == expected
    assert torch.equal(vector(resumed), vector(whole))


@pytest.mark.gpu
def test_gpu_training_depends_only_on_the_seed():
    models = [make_network("lstm") for _ in range(3)]
    first, again = run(models[0]), run(models[1])
    settings = TrainSettings(max_epochs=3, batch_rows=16)
    rows = make_sequences(48, 1), make_sequences(20, 2)
    with deterministic():
        list(train(models[2], loss_of, losses_of, *rows, settings, seed=4))

    assert again == first
    assert torch.equal(vector(models[1]), vector(models[0]))
    assert not torch.equal(vector(models[2]), vector(models[0]))
