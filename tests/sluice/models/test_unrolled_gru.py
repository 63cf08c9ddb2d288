"""The written-out GRU beside torch's own: values, gradients, random numbers, and what it leaves."""

import pytest
import torch
from torch import nn

from sluice.models.recurrent import Recurrent
from sluice.models.settings import ModelSettings
from sluice.models.unrolled_gru import UnrolledGRU


def pair(*sizes, **options):
    ours = UnrolledGRU(*sizes, **options)
    torch_own = nn.GRU(*sizes, **options)
    torch_own.load_state_dict(ours.state_dict())
    return ours, torch_own


def run(core, x, *, states=True, last=True):
    """Return outputs and every gradient of a loss that reads what is asked for."""
    torch.manual_seed(1)
    x = x.clone().requires_grad_()
    output, final = core(x)
    loss = 0.0
    if states:
        loss = loss + (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
    if last:
        loss = loss + final.square().sum()
    loss.backward()
    return [output, final, x.grad, *(p.grad for p in core.parameters())]


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 3, "batch_first": True},
        {"num_layers": 2, "dropout": 0.4},
    ],
)
def test_values_and_gradients_are_those_of_torch(options, states):
    """In double precision, so that only a wrong formula shows; dropout draws the same numbers."""
    ours, torch_own = pair(3, 5, dtype=torch.float64, **options)
    x = torch.randn(4, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    for here, there in zip(
        run(ours, x, states=states), run(torch_own, x, states=states), strict=True
    ):
        torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-14)


def test_the_gradient_is_that_of_finite_differences():
    core = UnrolledGRU(2, 3, num_layers=2, dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    parameters = dict(core.named_parameters())

    def states(x, *values):
        named = dict(zip(parameters, values, strict=True))
        return torch.func.functional_call(core, named, (x,))

    assert torch.autograd.gradcheck(states, (x, *parameters.values()))


def test_the_written_out_form_is_what_a_recurrent_network_runs(monkeypatch):
    monkeypatch.setattr(nn.GRU, "forward", None)
    network = Recurrent(3, 1, ModelSettings(hidden=4), cell="gru")

    network(torch.randn(2, 5, 3)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_predictions_have_the_bits_of_training():
    core = UnrolledGRU(3, 8, num_layers=2)
    x = torch.randn(5, 7, 3)
    with torch.inference_mode():
        plain = core(x)

    for here, there in zip(plain, core(x), strict=True):
        assert torch.equal(here, there)


def test_frozen_weights_and_a_second_backward_pass_are_possible():
    core = UnrolledGRU(3, 4)
    core.weight_hh_l0.requires_grad_(False)
    output, _ = core(torch.randn(2, 5, 3))
    output.sum().backward(retain_graph=True)
    once = core.weight_ih_l0.grad.clone()
    output.sum().backward()

    assert core.weight_hh_l0.grad is None
    assert torch.equal(core.weight_ih_l0.grad, 2 * once)


@pytest.mark.parametrize(
    ("options", "hand_over"),
    [
        ({"bidirectional": True}, lambda x: (x,)),
        ({"bias": False}, lambda x: (x,)),
        ({}, lambda x: (x, torch.ones(1, 4, 4))),
        ({}, lambda x: (nn.utils.rnn.pack_sequence(list(x)),)),
        ({}, lambda x: (x[0],)),
    ],
)
def test_where_it_does_not_apply_it_is_torchs_own(options, hand_over):
    ours, torch_own = pair(3, 4, **options)
    given = hand_over(torch.randn(5, 4, 3))
    here, there = ours(*given)[0], torch_own(*given)[0]

    if isinstance(here, nn.utils.rnn.PackedSequence):
        here, there = here.data, there.data
    assert torch.equal(here, there)


def test_a_lower_precision_is_left_to_torch():
    ours, torch_own = pair(3, 4)
    x = torch.randn(5, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours(x)[0], torch_own(x)[0])


@pytest.mark.parametrize(
    "x", [torch.zeros(4, 6, 2), torch.zeros(4, 6, 3, dtype=torch.float64)], ids=["width", "dtype"]
)
def test_wrong_inputs_are_refused_as_torch_refuses_them(x):
    said = []
    for core in pair(3, 4):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            core(x)
        said.append(str(caught.value))
    assert said[0] == said[1]
