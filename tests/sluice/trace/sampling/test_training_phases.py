"""New optimizers and loss jumps restart frequent sampling (TRACE-1, TRACE-2)."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.prediction import step_patterns
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings


def rows(num, *, source):
    """Return rows of four classes with eight features; each source has other class centres."""
    draws = torch.Generator().manual_seed(source)
    centres = torch.randn(4, 8, generator=draws)
    y = torch.randint(4, (num,), generator=draws)
    return centres[y] + 0.5 * torch.randn(num, 8, generator=draws), y


def train_on(model, optimizer, x, y, *, steps):
    order = torch.Generator().manual_seed(1)
    for _ in range(steps):
        picked = torch.randint(len(y), (32,), generator=order)
        optimizer.zero_grad()
        F.cross_entropy(model(x[picked]), y[picked]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        F.cross_entropy(model(x), y)
    model.train()


@pytest.mark.parametrize("is_permuted", [True, False])
def test_labels_of_a_second_data_source_are_checked_separately(trace_of, is_permuted):
    def program():
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        train_on(model, optimizer, *rows(2000, source=1), steps=400)
        x, y = rows(2000, source=2)
        if is_permuted:
            y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))]
        train_on(model, optimizer, x, y, steps=500)

    trace = trace_of(program)
    found = [(f.fault, f.severity) for f in judge(trace) if f.severity == "error"]

    assert {pair.phase for pair in trace.target_samples} == {0, 1}
    assert found == [("shuffled labels", "error")] * is_permuted
    if is_permuted:
        (error,) = [f for f in judge(trace) if f.severity == "error"]
        assert 400 < error.step <= 600


def phases_of(trace_of, losses):
    """Return the steps before which a phase began, for a run with these losses."""

    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1e-9)
        for loss in losses.tolist():
            optimizer.zero_grad()
            (loss + weight.sum()).backward()
            optimizer.step()

    trace = trace_of(program, TraceSettings(max_steps_between_samples=10_000))
    return sorted({fact.step for fact in trace.values})


def noise(num):
    return torch.randn(num, generator=torch.Generator().manual_seed(4))


POWERS = [1, 2, 3, 5, 9, 17, 33, 65, 129, 257]
"""Expected steps, possibly one later: repeated steps delay a sample to the next full one."""
LAST = range(513, 521)


def test_losses_of_two_alternating_optimizers_are_compared_in_step_order(trace_of, monkeypatch):
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 8)

    def program():
        weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizers = [torch.optim.SGD([weight], lr=1e-9) for weight in weights]
        for turn, odd in enumerate(noise(600).tolist()):
            # One loss is always low, the other rises slowly; neither jumps.
            for which, loss in enumerate((0.1 + 0.01 * odd, 1 + 0.002 * turn + 0.01 * odd)):
                optimizers[which].zero_grad()
                (loss + weights[which].sum()).backward()
                optimizers[which].step()

    trace = trace_of(program, TraceSettings(max_steps_between_samples=10_000))
    looked_at = sorted({fact.step for fact in trace.values})

    assert all(later - sooner > 40 for sooner, later in pairwise(looked_at) if sooner > 65)


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(noise(1000), id="noise"),
        pytest.param(noise(1000) + torch.linspace(50, 0, 1000), id="learning"),
        pytest.param(torch.cat([noise(500), noise(500) - 5]), id="a fall"),
        pytest.param(noise(1000) + 100 * (torch.arange(1000) % 50 == 0), id="spikes"),
    ],
)
def test_losses_without_a_jump_begin_no_phase(trace_of, losses):
    *first, last = phases_of(trace_of, losses)

    assert first == POWERS
    assert last in LAST


def test_a_loss_jump_begins_a_phase(trace_of):
    first, *_ = sorted(
        {*phases_of(trace_of, torch.cat([noise(500), noise(500) + 5]))} - {*POWERS, *LAST}
    )

    assert 516 < first < 660


def test_frequent_loss_jumps_begin_phases_less_and_less_often(trace_of):
    jumps = 100 * torch.arange(40).repeat_interleave(150) + noise(6000)

    looked_at = phases_of(trace_of, jumps)

    assert len(looked_at) < 80
    begun = [b - 1 for a, b, c in zip(looked_at, looked_at[1:], looked_at[2:], strict=False)
             if b - a > 10 and c - b == 1]  # fmt: skip
    assert len(begun) > 3
    assert all(later >= 2 * sooner for sooner, later in pairwise(begun))
