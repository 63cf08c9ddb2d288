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
    """Return rows of four classes with eight features; each source has its own class centers."""
    generator = torch.Generator().manual_seed(source)
    centers = torch.randn(4, 8, generator=generator)
    y = torch.randint(4, (num,), generator=generator)
    return centers[y] + 0.5 * torch.randn(num, 8, generator=generator), y


def train_on(model, optimizer, x, y, *, steps):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        picked = torch.randint(len(y), (32,), generator=generator)
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


def value_steps(trace_of, losses):
    """Return the steps at which parameter values are sampled in a run with these losses."""

    def program():
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=1e-9)
        for loss in losses.tolist():
            optimizer.zero_grad()
            (loss + weight.sum()).backward()
            optimizer.step()

    trace = trace_of(program, TraceSettings(max_steps_between_samples=10_000))
    return sorted({fact.step for fact in trace.parameter_values})


def noise(num):
    return torch.randn(num, generator=torch.Generator().manual_seed(4))


DOUBLING_STEPS = [1, 2, 3, 5, 9, 17, 33, 65, 129, 257]
"""Steps at which values are sampled if no phase begins."""
LAST_STEPS = range(513, 521)
"""Possible steps of the last sample, which waits for the next full sample of a repeated step."""


def test_losses_of_two_alternating_optimizers_are_compared_in_step_order(trace_of, monkeypatch):
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 8)

    def program():
        weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
        optimizers = [torch.optim.SGD([weight], lr=1e-9) for weight in weights]
        for round_number, noise_value in enumerate(noise(600).tolist()):
            # One loss is always low, the other rises slowly; neither jumps.
            for index, loss in enumerate(
                (0.1 + 0.01 * noise_value, 1 + 0.002 * round_number + 0.01 * noise_value)
            ):
                optimizers[index].zero_grad()
                (loss + weights[index].sum()).backward()
                optimizers[index].step()

    trace = trace_of(program, TraceSettings(max_steps_between_samples=10_000))
    sampled_steps = sorted({fact.step for fact in trace.parameter_values})

    assert all(next_step - step > 40 for step, next_step in pairwise(sampled_steps) if step > 65)


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
    *first, last = value_steps(trace_of, losses)

    assert first == DOUBLING_STEPS
    assert last in LAST_STEPS


def test_a_loss_jump_begins_a_phase(trace_of):
    first, *_ = sorted(
        {*value_steps(trace_of, torch.cat([noise(500), noise(500) + 5]))}
        - {*DOUBLING_STEPS, *LAST_STEPS}
    )

    assert 516 < first < 660


def test_frequent_loss_jumps_begin_phases_at_growing_intervals(trace_of):
    jumps = 100 * torch.arange(40).repeat_interleave(150) + noise(6000)

    sampled_steps = value_steps(trace_of, jumps)

    assert len(sampled_steps) < 80
    triples = zip(sampled_steps, sampled_steps[1:], sampled_steps[2:], strict=False)
    phase_starts = [b - 1 for a, b, c in triples if b - a > 10 and c - b == 1]
    assert len(phase_starts) > 3
    assert all(next_step >= 2 * step for step, next_step in pairwise(phase_starts))
