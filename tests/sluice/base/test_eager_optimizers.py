"""TRAIN-1: the optimizer of the trainer is torch's own, to the bit, and loads no compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from sluice.base.eager_optimizers import EagerAdamW, EagerLBFGS


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def steps(network, optimizer, count=5):
    for number in range(count):
        optimizer.zero_grad()
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
        network(x).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def groups(network):
    return [
        {"params": network[0].parameters(), "weight_decay": 0.3, "note": "kept"},
        {"params": network[2].parameters(), "lr": 0.1},
    ]


@pytest.mark.parametrize("fused", [True, False])
def test_it_ends_with_the_bits_of_torchs_own(fused):
    own, oracle = model(), model()
    optimizer = EagerAdamW(groups(own), lr=0.02, fused=fused)
    theirs = torch.optim.AdamW(groups(oracle), lr=0.02, fused=fused)

    assert torch.equal(steps(own, optimizer), steps(oracle, theirs))
    mine, other = optimizer.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == other["param_groups"]
    assert mine["state"].keys() == other["state"].keys()
    for index, moments in other["state"].items():
        assert all(torch.equal(mine["state"][index][name], moments[name]) for name in moments)


def test_l_bfgs_ends_with_the_bits_of_torchs_own():
    ends = []
    for kind in (EagerLBFGS, torch.optim.LBFGS):
        network = model()
        optimizer = kind(network.parameters(), max_iter=20, line_search_fn="strong_wolfe")
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))

        def closure(network=network, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            loss = (network(x) - x.sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        first = float(optimizer.step(closure).detach())
        ends.append((first, nn.utils.parameters_to_vector(network.parameters()).detach()))
        assert float(closure().detach()) < 0.5 * first

    assert ends[0][0] == ends[1][0]
    assert torch.equal(ends[0][1], ends[1][1])


def test_their_states_are_the_same():
    """Each goes on from the other's."""
    first, second = model(), model()
    steps(first, mine := EagerAdamW(first.parameters(), lr=0.02))
    steps(second, theirs := torch.optim.AdamW(second.parameters(), lr=0.02))
    mine_after = EagerAdamW(first.parameters(), lr=0.5)
    mine_after.load_state_dict(theirs.state_dict())
    theirs_after = torch.optim.AdamW(second.parameters(), lr=0.5)
    theirs_after.load_state_dict(mine.state_dict())

    assert torch.equal(steps(first, mine_after), steps(second, theirs_after))
    assert mine_after.param_groups[0]["lr"] == 0.02


def test_hooks_around_a_step_are_called_and_no_graph_is_kept():
    network, called = model(), []
    optimizer = EagerAdamW(network.parameters(), lr=0.02)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    steps(network, optimizer, 2)

    assert called == ["before", "after"] * 2
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
def test_training_resuming_and_the_constant_baseline_load_no_compiler():
    """It would double the time between the start of a process and its first epoch."""
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "[]"
