"""Validation losses far above the training loss (TRACE-9)."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.losses.overfitting import OVERFITTING

EPOCHS = 60


def make_data(*, is_noise):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(160, 20, generator=generator)
    learnable_labels = (x @ torch.randn(20, 10, generator=generator)).argmax(1)
    random_labels = torch.randint(10, (160,), generator=generator)
    return x, random_labels if is_noise else learnable_labels


def evaluate(model, x, y, loss_of):
    model.eval()
    with torch.no_grad():
        loss = loss_of(model(x), y)
    model.train()
    return float(loss)


def make_program(
    *, epochs=EPOCHS, is_noise=True, every=1, restores=False, scale=1.0, kind="classes"
):
    """Return a program that trains on 96 rows and is evaluated on 64 others."""

    def program():
        torch.manual_seed(0)
        x, y = make_data(is_noise=is_noise)
        loss_of = F.cross_entropy if kind == "classes" else F.mse_loss
        if kind == "regression":
            y = F.one_hot(y, 10).float()
        model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        best, best_state = float("inf"), None
        for epoch in range(epochs):
            for rows in torch.arange(96).split(16):
                optimizer.zero_grad()
                (scale * loss_of(model(x[rows]), y[rows])).backward()
                optimizer.step()
            if (epoch + 1) % every == 0:
                found = evaluate(model, x[96:], y[96:], loss_of)
                if found < best:
                    best, best_state = found, copy.deepcopy(model.state_dict())
        if restores:
            model.load_state_dict(best_state)
            evaluate(model, x[96:], y[96:], loss_of)

    return program


def test_memorized_rows_are_a_warning_from_the_lowest_validation_loss_on(trace_of):
    (found,) = OVERFITTING(trace_of(make_program()))

    assert found.severity == "warning"
    assert found.step < 0.5 * 6 * EPOCHS
    numbers = found.evidence
    assert numbers["validation_loss"] > 10 * numbers["training_loss"]
    assert numbers["validation_loss"] > 1.5 * numbers["lowest_validation_loss"]
    assert "the lowest validation loss was" in found.what
    assert "equal probabilities for all classes would give 2.3" in found.what


def test_one_evaluation_worse_than_guessing_is_reported(trace_of):
    (found,) = OVERFITTING(trace_of(make_program(every=EPOCHS)))

    assert "the lowest validation loss was" not in found.what
    assert found.evidence["validation_loss"] > 2.4


@pytest.mark.parametrize(
    "healthy",
    [
        {"epochs": 6},
        {"epochs": 12, "is_noise": False},
        {"restores": True},
        {"kind": "regression", "every": EPOCHS},
    ],
    ids=["few epochs", "learnable labels", "best state restored", "one evaluation of a regression"],
)
def test_runs_without_overfitting_are_not_reported(trace_of, healthy):
    assert OVERFITTING(trace_of(make_program(**healthy))) == ()


def test_scaled_training_losses_are_not_compared_with_validation_losses(trace_of):
    assert OVERFITTING(trace_of(make_program(scale=0.25))) == ()
