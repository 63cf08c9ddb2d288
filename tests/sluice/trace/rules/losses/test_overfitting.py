"""A validation loss far above the training loss is a warning with both numbers (TRACE-9)."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.losses.overfitting import OVERFITTING

EPOCHS = 60


def data(*, is_noise):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(160, 20, generator=generator)
    learnable = (x @ torch.randn(20, 10, generator=generator)).argmax(1)
    drawn = torch.randint(10, (160,), generator=generator)
    return x, drawn if is_noise else learnable


def evaluate(model, x, y, loss_of):
    model.eval()
    with torch.no_grad():
        loss = loss_of(model(x), y)
    model.train()
    return float(loss)


def training(*, epochs=EPOCHS, is_noise=True, every=1, restores=False, scale=1.0, kind="classes"):
    """Return a program that trains on 96 rows and is evaluated on 64 others."""

    def program():
        torch.manual_seed(0)
        x, y = data(is_noise=is_noise)
        loss_of = F.cross_entropy if kind == "classes" else F.mse_loss
        if kind == "numbers":
            y = F.one_hot(y, 10).float()
        model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        best, kept = float("inf"), None
        for epoch in range(epochs):
            for rows in torch.arange(96).split(16):
                optimizer.zero_grad()
                (scale * loss_of(model(x[rows]), y[rows])).backward()
                optimizer.step()
            if (epoch + 1) % every == 0:
                found = evaluate(model, x[96:], y[96:], loss_of)
                if found < best:
                    best, kept = found, copy.deepcopy(model.state_dict())
        if restores:
            model.load_state_dict(kept)
            evaluate(model, x[96:], y[96:], loss_of)

    return program


def test_memorized_rows_are_a_warning_from_the_lowest_validation_loss_on(trace_of):
    (found,) = OVERFITTING(trace_of(training()))

    assert found.severity == "warning"
    assert found.step < 0.5 * 6 * EPOCHS
    numbers = found.evidence
    assert numbers["validation_loss"] > 10 * numbers["training_loss"]
    assert numbers["validation_loss"] > 1.5 * numbers["lowest_validation_loss"]
    assert "the lowest validation loss was" in found.what
    assert "equal probabilities for all classes would give 2.3" in found.what


def test_one_evaluation_worse_than_guessing_is_enough(trace_of):
    (found,) = OVERFITTING(trace_of(training(every=EPOCHS)))

    assert "the lowest validation loss was" not in found.what
    assert found.evidence["validation_loss"] > 2.4


@pytest.mark.parametrize(
    "healthy",
    [
        {"epochs": 6},
        {"epochs": 12, "is_noise": False},
        {"restores": True},
        {"kind": "numbers", "every": EPOCHS},
    ],
    ids=["few epochs", "what can be learned", "lowest restored", "one evaluation of numbers"],
)
def test_other_runs_have_no_finding(trace_of, healthy):
    assert OVERFITTING(trace_of(training(**healthy))) == ()


def test_scaled_losses_are_not_evidence(trace_of):
    assert OVERFITTING(trace_of(training(scale=0.25))) == ()
