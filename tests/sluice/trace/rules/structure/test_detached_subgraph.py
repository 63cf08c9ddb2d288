"""Parts of a network that no gradient reaches (TRACE-16)."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    found_faults,
    labeled_batches,
    labeled_rows,
    root_fault_steps,
    train_on_batches,
)
from tests.support.traced.unusual_models import fit, mlp, rows

FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("kind", ["no_grad", "detach", "correct", "frozen"])
def test_features_detached_in_a_second_phase_are_reported(trace_of, kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
            self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 3)

        def features(self, x):
            if kind == "detach":
                return self.body(x).detach()
            with torch.set_grad_enabled(kind not in ("no_grad", "frozen")):
                return self.body(x)

    def program():
        net, batch = Net(), labeled_batches()
        optimizer = torch.optim.AdamW([*net.body.parameters(), *net.first.parameters()], lr=1e-3)
        train_on_batches(lambda x: net.first(net.body(x)), optimizer, batch, FIRST_PHASE_STEPS)
        net.body.requires_grad_(kind != "frozen")
        tuned = [*net.body.parameters()] * (kind != "frozen") + [*net.second.parameters()]
        optimizer = torch.optim.AdamW(tuned, lr=1e-3)
        train_on_batches(lambda x: net.second(net.features(x)), optimizer, batch, FIRST_PHASE_STEPS)

    trace = trace_of(program)
    found = [step for fault, step in root_fault_steps(trace) if fault == "detached subgraph"]

    assert len(found) == (kind in ("no_grad", "detach"))
    assert all(FIRST_PHASE_STEPS < step <= FIRST_PHASE_STEPS + 2 for step in found)
    # The parameters had gradients in the first phase.
    period = f"receive no gradient in any step from step {FIRST_PHASE_STEPS + 1} on"
    assert all(period in f.what for f in judge(trace) if f.fault == "detached subgraph")


@pytest.mark.parametrize("is_detached", [True, False])
def test_a_generator_trained_on_a_detached_output_is_reported(trace_of, is_detached):
    """The generator has no gradients, so no zero_grad is missing; both networks are sampled."""

    def program():
        real = labeled_rows(512)[0] + 2
        generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        discriminator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        discriminator_optimizer, generator_optimizer = (
            torch.optim.Adam(m.parameters(), lr=2e-3) for m in (discriminator, generator)
        )
        for number in range(100):
            real_rows = real[torch.arange(32) + 4 * number]
            ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
            discriminator.zero_grad()
            F.binary_cross_entropy_with_logits(discriminator(real_rows), ones).backward()
            fake = generator(torch.randn(32, 4))
            F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros).backward()
            discriminator_optimizer.step()
            generator.zero_grad()
            scores = discriminator(fake.detach() if is_detached else fake)
            F.binary_cross_entropy_with_logits(scores, ones).backward()
            generator_optimizer.step()

    trace = trace_of(program)
    num_samples = Counter(o.optimizer for m in trace.statistics for o in m.optimizers)

    assert min(num_samples.values()) > 0.25 * max(num_samples.values())
    assert [f for f in found_faults(trace) if f[1] != "warning"][:1] == [
        ("detached subgraph", "error")
    ] * is_detached
    assert "missing zero_grad" not in {fault for fault, _ in found_faults(trace)}


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def errors(trace):
    return [f.what for f in judge(trace) if f.severity == "error"]


def test_an_encoder_without_gradients_is_reported(trace_of):
    def train_head_only():
        encoder, head = nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Linear(8, 3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
        for _ in range(12):
            x, y = rows()
            with torch.no_grad():
                z = encoder(x)
            optimizer.zero_grad()
            F.cross_entropy(head(z), y).backward()
            optimizer.step()

    trace = trace_of(train_head_only)

    assert root_cause_list(trace)[0] == ("detached subgraph", "error", 1)
    assert any(
        "between Sequential and Linear" in what or "no_grad" in what for what in errors(trace)
    )


def test_unused_parameters_are_not_reported(trace_of):
    trace = trace_of(lambda: fit(Unused()))

    assert [p.largest_effect for p in trace.probes if p.probe == "weights"] == [0.0]
    assert errors(trace) == []


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.extra = mlp(), nn.Linear(16, 2)

    def forward(self, x):
        self.extra(x)
        return self.net(x)
