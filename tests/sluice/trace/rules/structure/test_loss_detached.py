"""Losses that are detached from the parameters (TRACE-16)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import (
    labeled_batches,
    root_fault_steps,
    root_faults,
    tanh_classifier,
    train_on_batches,
)

FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("kind", ["recreated", "attached"])
def test_a_loss_recreated_from_values_is_reported(trace_of, kind):
    def hardest(output, y):
        worst = F.cross_entropy(output, y, reduction="none").sort(descending=True)[0][:12]
        return (
            torch.tensor(worst.tolist(), requires_grad=True) if kind == "recreated" else worst
        ).mean()

    def program():
        model, batch = tanh_classifier(), labeled_batches()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS)
        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS, loss_of=hardest)

    found = root_fault_steps(trace_of(program))

    if kind == "recreated":
        ((fault, step),) = found
        assert fault == "detached loss"
        assert FIRST_PHASE_STEPS < step <= FIRST_PHASE_STEPS + 8
    else:
        assert "detached loss" not in {fault for fault, _ in found}


@pytest.mark.usefixtures("early_fast_path")
def test_steps_without_a_gradient_in_the_middle_are_not_a_detached_loss(trace_of):
    def program():
        model, batch = tanh_classifier(), labeled_batches()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        head = torch.ones((), requires_grad=True)
        train_on_batches(
            model, optimizer, batch, 40, loss_of=lambda o, y: F.cross_entropy(o * head, y)
        )
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS)

    assert "detached loss" not in root_faults(trace_of(program))


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "later"])
def test_a_loss_that_reaches_other_parameters_is_not_detached(trace_of, is_late):
    """The optimizer contains a frozen head while the norms receive gradients."""

    def program():
        model, batch = (
            nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
            labeled_batches(),
        )
        optimizer = torch.optim.Adam(model[3].parameters(), lr=1e-3)
        if is_late:
            model[:3].requires_grad_(False)
            train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS)
        model.requires_grad_(False)
        model[1].requires_grad_(True)
        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS)

    found = root_faults(trace_of(program))

    assert "detached loss" not in found
    assert "parameters not optimized" in found
