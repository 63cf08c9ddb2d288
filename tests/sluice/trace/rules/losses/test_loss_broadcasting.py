"""Losses that broadcast outputs against targets, including custom losses (TRACE-14)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.records.losses import MANUAL_DIFFERENCE
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings
from tests.support.traced.small_programs import (
    fault_severities,
    labeled_batches,
    labeled_rows,
    random_rows,
    root_fault_steps,
    tanh_classifier,
    train_on_batches,
    train_step,
)


def make_regression(loss_of, *, steps=4):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = random_rows(16)
        for _ in range(steps):
            train_step(optimizer, loss_of(model(x), x.sum(1)))

    return program


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda out, y: ((out - y) ** 2).mean(),
        lambda out, y: (y - out).abs().sum() / len(y),
        lambda out, y: torch.cosh(out - y).log().mean(),
        lambda out, y: ((out[:, 0] - y[:, None]) * (out[:, 0] - y[:, None])).mean(),
    ],
    ids=["square", "absolute", "cosh", "the target has the column"],
)
def test_a_custom_loss_over_all_pairs_is_reported(trace_of, loss_of):
    found = [f for f in judge(trace_of(make_regression(loss_of))) if f.fault == "loss broadcasting"]

    assert [(f.severity, f.step) for f in found] == [("error", 1)]
    assert "256 pairs instead of 16" in found[0].what


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_the_expected_number_of_pairs_counts_all_outputs_of_a_row(trace_of):
    def program():
        model, x = nn.Linear(6, 3), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            train_step(optimizer, F.mse_loss(model(x), x[:, :3].reshape(16, 1, 3)))

    found = [f for f in judge(trace_of(program)) if f.fault == "loss broadcasting"]

    assert ["768 pairs instead of 48" in finding.what for finding in found] == [True]


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda out, y: ((out[:, 0] - y) ** 2).mean(),
        lambda out, y: ((out - y[:, None]) ** 2).mean(),
        lambda out, y: F.softplus(-(out[:, 0][:, None] - out[:, 0][None]) * y.sign()).mean(),
        lambda out, y: ((out[:, 0][:, None] - y[None]) ** 2).mean(),
    ],
    ids=["rows", "columns", "pairs of outputs", "pairs on purpose"],
)
def test_intentional_differences_are_not_reported(trace_of, loss_of):
    assert "loss broadcasting" not in {
        fault for fault, _ in fault_severities(trace_of(make_regression(loss_of)))
    }


def test_broadcasting_of_a_chunk_of_the_output_is_reported(trace_of):
    def program():
        model, x = nn.Linear(6, 2), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            mean, spread = model(x).chunk(2, -1)
            error = (x.sum(1) - mean) ** 2 * (-spread).exp() + spread
            train_step(optimizer, error.mean())

    assert ("loss broadcasting", "error") in fault_severities(trace_of(program))


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("is_new", [True, False], ids=["new optimizer", "same optimizer"])
@pytest.mark.parametrize("broadcasts", [True, False])
def test_a_custom_loss_that_broadcasts_in_a_second_phase_is_reported(trace_of, is_new, broadcasts):
    def absolute_error(output, y):
        return (output if broadcasts else output[:, 0]).sub(y).abs().mean()

    def program():
        model, batch = tanh_classifier(1), labeled_batches()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train_on_batches(
            model,
            optimizer,
            batch,
            FIRST_PHASE_STEPS,
            loss_of=lambda o, y: F.mse_loss(o[:, 0], y.float()),
        )
        if is_new:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train_on_batches(model, optimizer, batch, 2 * FIRST_PHASE_STEPS, loss_of=absolute_error)

    found = [
        step for fault, step in root_fault_steps(trace_of(program)) if fault == "loss broadcasting"
    ]

    assert len(found) == broadcasts
    assert all(
        FIRST_PHASE_STEPS < step <= FIRST_PHASE_STEPS + (8 if is_new else 100) for step in found
    )


@pytest.mark.usefixtures("early_fast_path")
def test_a_new_custom_loss_is_inspected_soon(trace_of):
    """Squared errors first, then distances of every row to every target."""
    change_step = 50  # after the statistics of step 44; the next ones are those of step 87

    def program():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for step in range(62):
            x, y = torch.randn(8, 4), 3 * torch.randn(8)
            difference = model(x) - y[:, None] if step < change_step else model(x) - y
            loss = difference.pow(2).mean() if step < change_step else difference.abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    inspected_steps = [
        fact.step for fact in trace_of(program).losses if fact.kind == MANUAL_DIFFERENCE
    ]

    assert inspected_steps
    assert change_step <= inspected_steps[0] < change_step + TraceSettings().full_sample_every


@pytest.mark.parametrize("is_late", [False, True])
def test_a_custom_loss_of_a_second_phase_is_inspected_soon(trace_of, is_late):
    """When steps repeat one pattern, one step in eight is fully sampled."""

    def pinball(out, target):
        error = target - out
        return torch.maximum(0.8 * error, -0.2 * error).mean()

    def program():
        x, _ = labeled_rows(640)
        y = x[:, 0] + x[:, 1]
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for number in range(320):
            indices = torch.arange(32) + 32 * (number % 20)
            out = model(x[indices])
            if number < 281:
                train_step(optimizer, (out[:, 0] - y[indices]).square().mean())
            else:
                train_step(optimizer, pinball(out if is_late else out[:, 0], y[indices]))

    found = [f for f in judge(trace_of(program)) if f.fault == "loss broadcasting"]

    assert len(found) == is_late
    assert all(282 <= f.step < 290 for f in found)
