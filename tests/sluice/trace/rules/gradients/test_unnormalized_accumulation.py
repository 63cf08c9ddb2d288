"""Gradient accumulation without a division of the loss (TRACE-9)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.settings import TraceSettings
from tests.support.traced.small_programs import (
    fault_severities,
    found_faults,
    labeled_batches,
    labeled_rows,
    random_rows,
    root_fault_steps,
    root_findings,
    tanh_classifier,
    train_on_batches,
)


@pytest.mark.parametrize("divides", [True, False])
def test_accumulation_over_chunks_sampled_with_replacement_is_reported(trace_of, divides):
    def program():
        model, x = nn.Linear(6, 3), random_rows(240)
        y = torch.arange(240) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(5)
        for _ in range(6):
            rows = torch.randint(240, (40,), generator=generator)
            optimizer.zero_grad()
            for indices in rows.chunk(4):
                loss = F.cross_entropy(model(x[indices]), y[indices])
                (loss / 4 if divides else loss).backward()
            optimizer.step()

    found = fault_severities(trace_of(program))

    assert found == (set() if divides else {("unnormalized gradient accumulation", "error")})


@pytest.mark.parametrize("parts", [1, 4])
def test_accumulated_gradients_divided_by_1_are_reported(trace_of, parts):
    def program():
        model, x = nn.Linear(6, 1), random_rows(64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            for part in x.split(16):
                F.mse_loss(model(part)[:, 0], part.sum(1)).backward()
            torch._foreach_div_([p.grad for p in model.parameters()], parts)
            optimizer.step()
            optimizer.zero_grad()

    found = {fault for fault, _ in fault_severities(trace_of(program))}
    assert ("unnormalized gradient accumulation" in found) is (parts == 1)


GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


@pytest.mark.parametrize(("divides", "passes"), [(False, 3), (True, 3), (False, 2)])
def test_accumulated_custom_losses_without_division_are_reported(trace_of, divides, passes):
    def program():
        model, x = nn.Linear(6, 1), random_rows(600)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            for rows in torch.randint(0, 600, (passes, 16), generator=GENERATOR):
                loss = (model(x[rows])[:, 0] - x[rows].sum(1)).pow(2).mean()
                (loss / passes if divides else loss).backward()
            optimizer.step()

    found = [
        f
        for f in root_findings(trace_of(program))
        if f.fault == "unnormalized gradient accumulation"
    ]

    assert len(found) == (not divides and passes > 2)
    assert all("gradients of 3 batches" in f.what for f in found)


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("kind", ["undivided", "divided", "two losses of the same rows"])
def test_accumulation_without_division_that_starts_late_is_reported(trace_of, kind, every):
    def program():
        model, batch = tanh_classifier(), labeled_batches()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS)
        for _ in range(FIRST_PHASE_STEPS):
            optimizer.zero_grad()
            x, y = batch()
            for _ in range(4):
                if kind != "two losses of the same rows":
                    x, y = batch()
                loss = F.cross_entropy(model(x), y)
                (loss / 4 if kind == "divided" else loss).backward()
            optimizer.step()

    found = root_fault_steps(trace_of(program, TraceSettings(full_sample_every=every)))

    assert found == (
        {("unnormalized gradient accumulation", FIRST_PHASE_STEPS + 1)}
        if kind == "undivided"
        else set()
    )


@pytest.mark.parametrize("divisor", [1, 1.0, 4])
def test_an_accumulated_mean_loss_divided_by_1_is_reported(trace_of, divisor):
    def program():
        x, y = labeled_rows(512)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        for number, indices in enumerate(torch.arange(512).split(16)):
            (F.cross_entropy(model(x[indices]), y[indices]) / divisor).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    found = ("unnormalized gradient accumulation", "error") in found_faults(trace_of(program))
    assert found is (divisor == 1)
