"""Batches in which every target is ignored (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    fault_severities,
    labeled_rows,
    random_rows,
    root_causes,
    train_step,
)

GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


@pytest.mark.parametrize("every", [2, 12])
def test_batches_without_a_target_are_an_error_only_if_frequent(trace_of, every):
    def program():
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(24):
            y = torch.full((8,), -100) if number % every == 1 else torch.arange(8) % 3
            count = (y >= 0).sum().clamp(min=1)
            loss = F.cross_entropy(model(random_rows(8, seed=number)), y, reduction="sum") / count
            train_step(optimizer, loss)

    severity = "error" if every == 2 else "warning"
    assert ("all targets ignored", severity) in fault_severities(trace_of(program))


@pytest.mark.parametrize("has_ignored_batch", [True, False])
def test_ignored_labels_are_reported_if_the_network_computes_the_loss(trace_of, has_ignored_batch):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, ids, labels):
            scores = self.out(self.table(ids)).log_softmax(-1)
            counts = labels >= 0
            picked = scores.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
            return -(picked * counts).sum() / counts.sum().clamp(min=1)

    def program():
        model = WithLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = torch.randint(9, (16, 6), generator=GENERATOR)
        for number in range(8):
            labels = ids.clone()
            labels[:, : 6 if has_ignored_batch and number == 5 else 3] = -100
            train_step(optimizer, model(ids, labels))

    assert (
        ("all targets ignored", "error") in fault_severities(trace_of(program))
    ) is has_ignored_batch


@pytest.mark.parametrize(("num_ignored_rows", "severity"), [(16, {"error"}), (6, set())])
def test_a_text_batch_without_a_target_is_reported_for_a_summed_loss(
    trace_of, num_ignored_rows, severity
):
    def program():
        model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(20):
            ids = torch.randint(2, 30, (16, 12), generator=GENERATOR)
            labels = torch.cat([ids[:, 1:], ids[:, :1]], 1)
            labels[:, :6] = -100
            if i == 4:
                labels[:num_ignored_rows] = -100
            optimizer.zero_grad()
            loss = F.cross_entropy(
                model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
            )
            (loss / max(int((labels >= 0).sum()), 1)).backward()
            optimizer.step()

    severities = {
        s for fault, s, _ in root_causes(trace_of(program)) if fault == "all targets ignored"
    }

    assert severities == severity


@pytest.mark.parametrize("is_late", [False, True])
def test_ignored_targets_late_in_the_run_are_reported(trace_of, is_late):
    def program():
        x, y = labeled_rows(640)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(560):
            indices = torch.arange(32) + 32 * (number % 20)
            target = torch.full_like(y[indices], -100) if is_late and number >= 400 else y[indices]
            total = F.cross_entropy(model(x[indices]), target, reduction="sum")
            train_step(optimizer, total / (target >= 0).sum().clamp(min=1))

    found = [f for f in judge(trace_of(program)) if f.fault == "all targets ignored"]

    assert [f.severity for f in found] == ["error"] * is_late
    assert all(400 < f.step < 530 for f in found)
