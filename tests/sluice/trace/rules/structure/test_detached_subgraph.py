"""Parts of a network that no gradient reaches (TRACE-16)."""

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
"""Steps of the first phase."""


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("kind", ["no_grad", "detach", "right", "frozen"])
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


@pytest.mark.parametrize("cuts", [True, False])
def test_a_generator_trained_on_a_detached_output_is_reported(trace_of, cuts):
    """The generator's gradients are absent, not carried over; both networks are sampled."""

    def program():
        real = labeled_rows(512)[0] + 2
        maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        judge_of = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        of_judge, of_maker = (torch.optim.Adam(m.parameters(), lr=2e-3) for m in (judge_of, maker))
        for number in range(100):
            some = real[torch.arange(32) + 4 * number]
            ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
            judge_of.zero_grad()
            F.binary_cross_entropy_with_logits(judge_of(some), ones).backward()
            fake = maker(torch.randn(32, 4))
            F.binary_cross_entropy_with_logits(judge_of(fake.detach()), zeros).backward()
            of_judge.step()
            maker.zero_grad()
            seen = judge_of(fake.detach() if cuts else fake)
            F.binary_cross_entropy_with_logits(seen, ones).backward()
            of_maker.step()

    trace = trace_of(program)
    looks = {o.optimizer: 0 for m in trace.statistics for o in m.optimizers}
    for measures in trace.statistics:
        for own in measures.optimizers:
            looks[own.optimizer] += 1

    assert min(looks.values()) > 0.25 * max(looks.values())
    assert [f for f in found_faults(trace) if f[1] != "warning"][:1] == [
        ("detached subgraph", "error")
    ] * cuts
    assert "missing zero_grad" not in {fault for fault, _ in found_faults(trace)}


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def errors(trace):
    return [f.what for f in judge(trace) if f.severity == "error"]


def test_an_encoder_without_gradients_is_reported(trace_of):
    def switched_off():
        encoder, head = nn.Sequential(nn.Linear(16, 8), nn.ReLU()), nn.Linear(8, 3)
        optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()])
        for _ in range(12):
            x, y = rows()
            with torch.no_grad():
                z = encoder(x)
            optimizer.zero_grad()
            F.cross_entropy(head(z), y).backward()
            optimizer.step()

    trace = trace_of(switched_off)

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
