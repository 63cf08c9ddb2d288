"""The probe that compares gradients with finite differences (TRACE-7)."""

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


class TwoLayers(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, between=nn.functional.relu):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.between = between

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class SinglePrecisionScaling(nn.Module):
    def forward(self, x):
        return (x.float() / 3).to(x.dtype)


def run_probe(network, loss=nn.functional.cross_entropy, x=X, y=Y):
    return probe_gradients(network, loss, x, y, seed=0)


@pytest.mark.parametrize(
    "network",
    [
        TwoLayers(),
        TwoLayers(torch.tanh),
        TwoLayers(Square.apply),
        TwoLayers(nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))),
        TwoLayers(lambda h: h + torch.zeros(8)),
    ],
)
def test_a_network_with_correct_gradients_passes(network):
    result = run_probe(network)

    assert result.outcome == "pass", result.seen
    assert result.numbers["tensors"] == 5 + 2 * isinstance(network.between, nn.Sequential)


def test_zeros_at_the_kink_of_a_relu_pass():
    network = TwoLayers()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)

    assert run_probe(network, x=torch.zeros(2, 5)).outcome == "pass"


def test_an_unused_parameter_passes():
    network = TwoLayers()
    network.spare = nn.Linear(2, 2)

    assert run_probe(network).outcome == "pass"


@pytest.mark.parametrize(
    ("between", "cause", "tensor"),
    [
        (
            lambda h: h.detach(),
            "Non-differentiable operation between first.weight and the output: detach()",
            "first.weight",
        ),
        (
            torch.round,
            "Non-differentiable operation between first.weight and the output: round()",
            "first.weight",
        ),
        (lambda h: h * h.detach(), "cuts one of the paths from first.weight", "first.weight"),
        (WrongSquare.apply, "backward() of WrongSquare does not match", "first.weight"),
        (
            SinglePrecisionScaling(),
            "An operation reduces the precision: _to_copy() to float32 in 'between'",
            None,
        ),
    ],
)
def test_the_cause_and_the_parameter_of_a_wrong_gradient_are_reported(between, cause, tensor):
    result = run_probe(TwoLayers(between))

    assert result.outcome == "fail"
    assert cause in result.why
    assert result.fix
    if tensor:
        assert result.numbers["tensor"] == tensor
        assert tensor in result.seen


def test_an_input_of_categories_passes():
    class Categories(TwoLayers):
        def forward(self, x):
            return super().forward(nn.functional.one_hot(x[:, 0].round().long() % 5, 5).double())

    assert run_probe(Categories(), x=torch.arange(10.0).reshape(2, 5)).outcome == "pass"


def test_a_single_precision_tensor_inside_the_network_is_reported():
    single = torch.ones(8, 8, dtype=torch.float32)

    assert "creates a float32 tensor" in run_probe(TwoLayers(lambda h: h @ single)).why


def test_an_in_place_operation_is_reported():
    result = run_probe(TwoLayers(lambda h: torch.exp(h).mul_(2).sigmoid_().add_(1)))

    assert result.outcome == "fail"
    assert "in-place" in result.why


def test_a_loss_per_row_fails():
    result = run_probe(
        TwoLayers(), lambda out, y: nn.functional.cross_entropy(out, y, reduction="none")
    )

    assert result.outcome == "fail"
    assert "shape is (2,)" in result.seen
    assert "Non-scalar" in result.why


def test_a_non_differentiable_loss_is_reported():
    result = run_probe(TwoLayers(), lambda out, y: (out.argmax(dim=1) != y).double().mean())

    assert result.outcome == "fail"
    assert "argmax()" in result.why


def test_randomness_in_evaluation_mode_is_reported():
    result = run_probe(TwoLayers(nn.functional.dropout))

    assert (result.outcome, result.seen) == (
        "fail",
        "the loss: Two passes over the same input differ.",
    )


def test_custom_functions_are_probed_without_a_network():
    x, table = torch.randn(3), torch.arange(3)

    assert probe_function(Square.apply, (x,), name="Square", seed=0).outcome == "pass"
    assert probe_function(lambda t, i: t[i] ** 2, (x, table), name="pick", seed=0).outcome == "pass"
    wrong_square = probe_function(WrongSquare.apply, (x,), name="WrongSquare", seed=0)
    assert wrong_square.outcome == "fail"
    assert "WrongSquare: The gradient of input 0" in wrong_square.seen
    in_place = probe_function(lambda t: (t * 1).add_(1).exp().add_(1), (x,), name="w", seed=0)
    assert "in-place" in in_place.why


def test_the_probe_changes_neither_the_network_nor_global_state():
    network = TwoLayers()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()

    run_probe(network)

    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


def test_invalid_arguments_are_rejected():
    with pytest.raises(ContractError, match="no trainable parameter"):
        run_probe(nn.Flatten())
    with pytest.raises(ContractError, match="input that is a tensor of floats"):
        probe_function(Square.apply, (torch.arange(3),), name="Square", seed=0)
