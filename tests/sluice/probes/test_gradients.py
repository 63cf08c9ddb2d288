"""Gradients against measured slopes (TRACE-7)."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.probes.gradients import probe_function, probe_gradients

X = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 2])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class WrongSquare(Square):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x * grad


class Net(nn.Module):
    """Two layers with something in between."""

    def __init__(self, between=nn.functional.relu):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class SingleNorm(nn.Module):
    def forward(self, x):
        return (x.float() / 3).to(x.dtype)


def ask(network, loss=nn.functional.cross_entropy, x=X, y=Y):
    return probe_gradients(network, loss, x, y, seed=0)


@pytest.mark.parametrize(
    "network",
    [
        Net(),
        Net(torch.tanh),
        Net(Square.apply),
        Net(nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))),
        Net(lambda h: h + torch.zeros(8)),
    ],
)
def test_sound_networks_pass(network):
    answer = ask(network)

    assert answer.outcome == "pass", answer.seen
    assert answer.numbers["tensors"] == 5 + 2 * isinstance(network.between, nn.Sequential)


def test_zeros_at_the_bend_of_a_relu_are_no_fault():
    network = Net()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)

    assert ask(network, x=torch.zeros(2, 5)).outcome == "pass"


def test_an_unused_parameter_is_no_fault():
    network = Net()
    network.spare = nn.Linear(2, 2)

    assert ask(network).outcome == "pass"


@pytest.mark.parametrize(
    ("between", "why", "tensor"),
    [
        (
            lambda h: h.detach(),
            "Non-differentiable operation on its path: detach()",
            "first.weight",
        ),
        (torch.round, "Non-differentiable operation on its path: round()", "first.weight"),
        (lambda h: h * h.detach(), "A part of the path is cut", "first.weight"),
        (WrongSquare.apply, "backward of WrongSquare does not match", "first.weight"),
        (SingleNorm(), "Reduced precision inside: _to_copy() to float32 in 'between'", None),
    ],
)
def test_the_reason_and_the_parameter_are_named(between, why, tensor):
    answer = ask(Net(between))

    assert answer.outcome == "fail"
    assert why in answer.why
    assert answer.fix
    if tensor:
        assert answer.numbers["tensor"] == tensor
        assert tensor in answer.seen


def test_an_input_of_categories_is_no_fault():
    class Categories(Net):
        def forward(self, x):
            return super().forward(nn.functional.one_hot(x[:, 0].round().long() % 5, 5).double())

    assert ask(Categories(), x=torch.arange(10.0).reshape(2, 5)).outcome == "pass"


def test_a_tensor_of_single_precision_in_the_way_is_named():
    single = torch.ones(8, 8, dtype=torch.float32)

    assert "Single precision inside" in ask(Net(lambda h: h @ single)).why


def test_in_place_changes_are_named():
    answer = ask(Net(lambda h: torch.exp(h).mul_(2).sigmoid_().add_(1)))

    assert answer.outcome == "fail"
    assert "in-place" in answer.why


def test_a_loss_per_row_is_no_scalar():
    answer = ask(Net(), lambda out, y: nn.functional.cross_entropy(out, y, reduction="none"))

    assert answer.outcome == "fail"
    assert "shape is (2,)" in answer.seen
    assert "Non-scalar" in answer.why


def test_a_loss_without_a_way_back_is_named():
    answer = ask(Net(), lambda out, y: (out.argmax(dim=1) != y).double().mean())

    assert answer.outcome == "fail"
    assert "argmax()" in answer.why


def test_noise_in_evaluation_mode_is_named():
    answer = ask(Net(nn.functional.dropout))

    assert (answer.outcome, answer.seen) == (
        "fail",
        "the loss: Two passes over the same input differ.",
    )


def test_custom_functions_by_themselves():
    x, table = torch.randn(3), torch.arange(3)

    assert probe_function(Square.apply, (x,), name="Square", seed=0).outcome == "pass"
    assert probe_function(lambda t, i: t[i] ** 2, (x, table), name="pick", seed=0).outcome == "pass"
    wrong = probe_function(WrongSquare.apply, (x,), name="WrongSquare", seed=0)
    assert wrong.outcome == "fail"
    assert "WrongSquare: The gradient of input 0" in wrong.seen
    written = probe_function(lambda t: (t * 1).add_(1).exp().add_(1), (x,), name="w", seed=0)
    assert "in-place" in written.why


def test_the_network_the_default_precision_and_the_caller_are_left_alone():
    network = Net()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()

    ask(network)

    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


def test_bad_input_is_refused():
    with pytest.raises(ContractError, match="no trainable parameter"):
        ask(nn.Flatten())
    with pytest.raises(ContractError, match="input that is a tensor of floats"):
        probe_function(Square.apply, (torch.arange(3),), name="Square", seed=0)
