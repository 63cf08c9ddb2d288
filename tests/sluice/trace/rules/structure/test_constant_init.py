"""Layers that are initialized with equal weights (TRACE-8)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    labeled_batches,
    random_rows,
    root_causes,
    root_fault_steps,
    tanh_classifier,
    train_on_batches,
)

GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


class LowRank(nn.Module):
    def __init__(self, base, scale):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(scale * random_rows(4, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, 4))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_low_rank_factors_that_are_both_zero_in_a_second_phase_are_reported(trace_of, scale):
    def fit(model, parameters, steps):
        optimizer = torch.optim.Adam(parameters, lr=0.01)
        x = random_rows(64)
        y = (x[:, 0] > 0).long()
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    def program():
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        fit(model, model.parameters(), 90)
        model.requires_grad_(False)
        model[0], model[2] = LowRank(model[0], scale), LowRank(model[2], scale)
        fit(model, [p for p in model.parameters() if p.requires_grad], 40)

    trace = trace_of(program)

    errors = {found for found in root_causes(trace) if found[1] == "error"}
    assert errors == ({("constant initialization", "error", 91)} if not scale else set())
    # The steps of the second phase are fully sampled, like the first ones.
    sampled = {m.step for m in trace.statistics}
    assert {91, 92} <= sampled
    assert len(sampled & set(range(91, 101))) >= 4


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = nn.Parameter(40 * torch.linspace(0, 1, 8).repeat(16, 1))
        self.weights = nn.Linear(16 * 8, 1)

    def forward(self, t):
        return self.weights(torch.sin(self.rates * t[:, None, None]).flatten(1))


def test_rows_that_diverge_slowly_are_not_reported(trace_of):
    def program():
        model, t = Waves(), torch.rand(64, generator=GENERATOR)
        slow = {"params": [model.rates], "lr": 0.02}
        optimizer = torch.optim.SGD([slow, {"params": model.weights.parameters()}], lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            F.mse_loss(model(t)[:, 0], (5 * t).cos()).backward()
            optimizer.step()

    assert "constant initialization" not in {
        fault for fault, _, _ in root_causes(trace_of(program))
    }


@pytest.mark.parametrize("columns", [2, 12])
def test_equal_rows_of_few_low_precision_columns_are_not_leakage(trace_of, columns):
    is_leak = columns == 12
    x = (3 + random_rows(8000, columns) / 2).bfloat16()
    if is_leak:
        x[6000:6100] = x[:100]

    def program():
        model = nn.Linear(columns, 1, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for rows in x[:6000].split(200):
            optimizer.zero_grad()
            F.mse_loss(model(rows)[:, 0], rows.sum(1)).backward()
            optimizer.step()
        with torch.no_grad():
            for rows in x[6000:].split(500):
                model(rows)

    found = {fault for fault, _, _ in root_causes(trace_of(program))}

    assert ("train-validation leakage" in found) is is_leak


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
def test_low_rank_factors_that_are_both_zero_after_many_steps_are_reported(trace_of):
    class LowRank(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.down, self.up = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(16, 4))

        def forward(self, x):
            return self.base(x) + x @ self.down.T @ self.up.T

    def program():
        model, batch = tanh_classifier(), labeled_batches()
        train_on_batches(
            model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch, FIRST_PHASE_STEPS + 5
        )
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model[0] = LowRank(model[0])
        trainable = [p for p in model.parameters() if p.requires_grad]
        train_on_batches(model, torch.optim.AdamW(trainable, lr=1e-3), batch, FIRST_PHASE_STEPS)

    assert root_fault_steps(trace_of(program)) == {
        ("constant initialization", FIRST_PHASE_STEPS + 6)
    }


def test_a_single_weight_is_reported_in_the_singular(trace_of):
    def program():
        model = tanh_classifier()
        nn.init.constant_(model[0].weight, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train_on_batches(model, optimizer, labeled_batches(), 30)

    (what,) = (f.what for f in judge(trace_of(program)) if f.fault == "constant initialization")

    assert what.startswith("1 weight was initialized with a single value (0.1 in the first weight)")
