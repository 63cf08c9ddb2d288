"""The trainer's optimizers are bitwise equal to torch's and import no compiler (TRAIN-1)."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from sluice.base.eager_optimizers import EagerAdamW, EagerLBFGS


def make_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def run_steps(network, optimizer, count=5):
    for number in range(count):
        optimizer.zero_grad()
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
        network(x).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def make_param_groups(network):
    return [
        {"params": network[0].parameters(), "weight_decay": 0.3, "note": "kept"},
        {"params": network[2].parameters(), "lr": 0.1},
    ]


@pytest.mark.parametrize("fused", [True, False])
def test_eager_adamw_is_bitwise_equal_to_torch_adamw(fused):
    network, reference_network = make_network(), make_network()
    optimizer = EagerAdamW(make_param_groups(network), lr=0.02, fused=fused)
    reference_optimizer = torch.optim.AdamW(
        make_param_groups(reference_network), lr=0.02, fused=fused
    )

    assert torch.equal(
        run_steps(network, optimizer), run_steps(reference_network, reference_optimizer)
    )
    state, reference_state = optimizer.state_dict(), reference_optimizer.state_dict()
    assert state["param_groups"] == reference_state["param_groups"]
    assert state["state"].keys() == reference_state["state"].keys()
    for index, moments in reference_state["state"].items():
        assert all(torch.equal(state["state"][index][name], moments[name]) for name in moments)


def test_eager_lbfgs_is_bitwise_equal_to_torch_lbfgs():
    results = []
    for optimizer_class in (EagerLBFGS, torch.optim.LBFGS):
        network = make_network()
        optimizer = optimizer_class(
            network.parameters(), max_iter=20, line_search_fn="strong_wolfe"
        )
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))

        def closure(network=network, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            loss = (network(x) - x.sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        first_loss = float(optimizer.step(closure).detach())
        results.append((first_loss, nn.utils.parameters_to_vector(network.parameters()).detach()))
        assert float(closure().detach()) < 0.5 * first_loss

    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


def test_states_of_eager_and_torch_adamw_are_interchangeable():
    """Each optimizer continues from the state dict of the other."""
    eager_network, torch_network = make_network(), make_network()
    run_steps(eager_network, eager := EagerAdamW(eager_network.parameters(), lr=0.02))
    run_steps(torch_network, plain := torch.optim.AdamW(torch_network.parameters(), lr=0.02))
    resumed_eager = EagerAdamW(eager_network.parameters(), lr=0.5)
    resumed_eager.load_state_dict(plain.state_dict())
    resumed_plain = torch.optim.AdamW(torch_network.parameters(), lr=0.5)
    resumed_plain.load_state_dict(eager.state_dict())

    assert torch.equal(
        run_steps(eager_network, resumed_eager), run_steps(torch_network, resumed_plain)
    )
    assert resumed_eager.param_groups[0]["lr"] == 0.02


def test_step_hooks_are_called_and_parameters_stay_leaves():
    network, calls = make_network(), []
    optimizer = EagerAdamW(network.parameters(), lr=0.02)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run_steps(network, optimizer, 2)

    assert calls == ["before", "after"] * 2
    assert all(p.is_leaf and p.requires_grad for p in network.parameters())
    assert torch.is_grad_enabled()


SCRIPT = """
import sys, torch
from sluice.training.settings import TrainSettings
from sluice.training.loop import train
from sluice.workloads.workload import Examples
x = torch.ones(64, 3)
rows = Examples(x=x, y=x[:, :1], rows=range(64))
loss = lambda output, y: (output - y).square().mean(dim=1)
settings = TrainSettings(max_epochs=2)
states = []
for _ in range(2):
    resume = states[0] if states else None
    list(train(torch.nn.Linear(3, 1), lambda o, y: loss(o, y).mean(), loss, rows, rows, settings,
               seed=0, on_state=states.append, resume=resume))
from types import SimpleNamespace
from sluice.workloads.constant_baseline import constant_baseline_loss
workload = SimpleNamespace(losses=loss, output_shape=lambda y: (1,))
assert 0.05 < constant_baseline_loss(workload, torch.linspace(0, 1, 64)[:, None] ** 2) < 0.2
print(sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_training_resume_and_constant_baseline_do_not_import_dynamo_or_sympy():
    """These imports would double the time from process start to the first epoch."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )

    assert process.stdout.strip() == "[]"
