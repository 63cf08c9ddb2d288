"""Labels that are independent of the inputs (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules._helpers.independence_test import dependence_z_score
from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    fault_severities,
    random_rows,
    seeded_generator,
    train_step,
)

GENERATOR = torch.Generator().manual_seed(3)
"""Module-level generator, as in scripts that sample their batches with it."""


class Sites(nn.Module):
    def __init__(self):
        super().__init__()
        self.site, self.body = nn.Embedding(5, 3), nn.Linear(9, 2)

    def forward(self, x, site):
        return self.body(torch.cat([x, self.site(site)], 1))


@pytest.mark.parametrize("determined_by", ["nothing", "numbers", "sites"])
def test_labels_are_compared_with_all_inputs_of_a_network(trace_of, determined_by):
    def program():
        generator = torch.Generator().manual_seed(4)
        x, site = random_rows(1024), torch.randint(5, (1024,), generator=generator)
        y = {
            "nothing": torch.randint(2, (1024,), generator=generator),
            "numbers": (x[:, 0] > 0).long(),
            "sites": (site > 2).long(),
        }[determined_by]
        model = Sites()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for rows in torch.arange(1024).chunk(16) * 3:
            batch = x[rows], site[rows]
            train_step(optimizer, F.cross_entropy(model(*batch), y[rows]))
        with torch.no_grad():
            F.cross_entropy(model(x, site), y)

    found = ("shuffled labels", "error") in fault_severities(trace_of(program))
    assert found is (determined_by == "nothing")


@pytest.mark.parametrize("order", ["right", "shuffled"])
def test_the_target_with_the_largest_variance_is_compared_with_the_inputs(trace_of, order):
    def program():
        x, noise = random_rows(1024), random_rows(1024, columns=1, seed=5)
        # The first target is almost zero and independent of the inputs.
        y = torch.cat([0.01 * noise, x[:, :1].square(), x[:, 1:2].tanh()], 1)
        if order == "shuffled":
            y = y[torch.randperm(1024, generator=torch.Generator().manual_seed(4))]
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for rows in torch.arange(1024).chunk(16) * 3:
            train_step(optimizer, F.mse_loss(model(x[rows]), y[rows]))
        with torch.no_grad():
            F.mse_loss(model(x), y)

    found = ("shuffled labels", "error") in fault_severities(trace_of(program))
    assert found is (order == "shuffled")


def test_an_autoencoder_has_no_labels(trace_of):
    def program():
        x = torch.cat(
            [0.02 * random_rows(1024, columns=1, seed=5).abs(), random_rows(1024).sigmoid()], 1
        )
        model = nn.Linear(7, 7)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for rows in torch.arange(1024).chunk(16) * 3:
            batch = x[rows]
            train_step(optimizer, F.binary_cross_entropy_with_logits(model(batch), batch))
        with torch.no_grad():
            F.binary_cross_entropy_with_logits(model(x), x)

    trace = trace_of(program)

    assert trace.target_samples == ()
    assert "shuffled labels" not in {fault for fault, _ in fault_severities(trace)}


def test_targets_of_one_call_are_not_compared_with_inputs_of_another(trace_of):
    def program():
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = random_rows(1024)
        for part in x.repeat(6, 1).split(64):
            scores, noise = model(part), model(torch.randn(64, 6, generator=GENERATOR))
            loss = F.cross_entropy(scores, (part[:, 0] > 0).long())
            train_step(optimizer, loss + 0.1 * F.softplus(noise.logsumexp(-1)).mean())

    trace = trace_of(program)
    assert not fault_severities(trace)
    assert not trace.target_samples


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffled", "memorized", "weak", "strong"])
def test_two_independent_classes_are_reported_without_an_evaluation(trace_of, kind):
    is_memorized = kind == "memorized"
    num, epochs = (500, 40) if is_memorized else (2000, 10)

    def program():
        x = random_rows(num, seed=5)
        slope = 0.6 if kind == "weak" else 3.0
        y = (
            torch.rand(num, generator=seeded_generator(6)) < torch.sigmoid(slope * x[:, 0])
        ).float()
        if kind in ("shuffled", "memorized"):
            y = y[torch.randperm(num, generator=seeded_generator(7))]
        model = nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for epoch in range(epochs):
            if is_memorized and epoch == 25:
                optimizer.param_groups[0]["lr"] = 5e-3
            for rows in torch.randperm(num, generator=seeded_generator(epoch)).split(50):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(model(x[rows])[:, 0], y[rows]).backward()
                optimizer.step()

    found = [f for f in judge(trace_of(program)) if f.severity == "error"]

    assert {f.fault for f in found} == ({"shuffled labels"} if kind == "shuffled" else set())


def test_the_independence_test_detects_dependence_only():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(512, 6, generator=generator)
    noise = torch.randn(512, generator=generator)

    assert dependence_z_score(x, (0.4 * x[:, 3] + noise).tolist(), is_class=False) > 4
    assert dependence_z_score(x, (x[:, 0] * x[:, 1] > 0).double().tolist(), is_class=True) > 3
    assert dependence_z_score(x, noise.tolist(), is_class=False) < 3
    assert dependence_z_score(x, x[:, 0].mul(0).tolist(), is_class=False) == 0
