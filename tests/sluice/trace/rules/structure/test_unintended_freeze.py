"""Layers that are frozen by mistake (TRACE-16)."""

import itertools

import pytest
import torch
from torch import nn

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step

FREEZES = ("unintended freeze", "misspelled requires_grad")


def test_a_frozen_body_between_trained_ends_needs_confirmation(trace_of):
    def program():
        sizes = [6, 6, 60, 60, 60, 6, 6]
        body = nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
        for part in body[1:-1]:
            part.requires_grad_(requires_grad=False)
        optimizer = torch.optim.SGD([p for p in body.parameters() if p.requires_grad], lr=0.01)
        for _ in range(6):
            train_step(optimizer, body(random_rows(16)).square().mean())

    assert ("unintended freeze", "confirm") in fault_severities(trace_of(program))


@pytest.mark.parametrize(
    ("unfreezing", "expected"),
    [
        ("typo", ("unintended freeze", "error")),
        ("module", ("unintended freeze", "confirm")),
        ("none", ("unintended freeze", "confirm")),
        ("correct", None),
        ("loaded", None),
        ("outside", None),
    ],
)
def test_a_body_never_loaded_and_never_unfrozen_needs_confirmation(trace_of, unfreezing, expected):
    def program():
        body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        model = nn.Sequential(body, nn.Linear(64, 1))
        if unfreezing == "loaded":
            with torch.no_grad():
                for parameter in body.parameters():
                    parameter.mul_(2)
        body.requires_grad_(requires_grad=False)
        optimized = model[1] if unfreezing == "outside" else model
        optimizer = torch.optim.SGD(optimized.parameters(), lr=0.01)
        for number in range(40):
            train_step(
                optimizer, (model(random_rows(16))[:, 0] - random_rows(16).sum(1)).square().mean()
            )
            if number == 9 and unfreezing == "correct":
                body.requires_grad_(requires_grad=True)
            if number == 9 and unfreezing == "typo":
                for parameter in body.parameters():
                    parameter.require_grad = True
            if number == 9 and unfreezing == "module":
                body.requires_grad = True

    findings = [f for f in judge(trace_of(program)) if f.fault in FREEZES]

    assert {(f.fault, f.severity) for f in findings} == ({expected} if expected else set())
    if unfreezing == "typo":
        assert findings[0].what.endswith(
            "require_grad = True, but requires_grad of the parameters is False."
        )


def test_a_small_frozen_backbone_with_initial_values_needs_confirmation(trace_of):
    """Its first convolution has 144 values."""

    def program():
        body = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.Flatten())
        model = nn.Sequential(body.requires_grad_(requires_grad=False), nn.Linear(512, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(0)
        for _ in range(6):
            images = torch.randn(8, 1, 8, 8, generator=generator)
            train_step(optimizer, model(images).square().mean())

    assert ("unintended freeze", "confirm") in fault_severities(trace_of(program))
