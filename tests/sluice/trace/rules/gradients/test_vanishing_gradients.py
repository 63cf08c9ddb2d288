"""Gradients that vanish between layers (TRACE-8)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.gradients.vanishing_gradients import VANISHING_GRADIENTS
from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step
from tests.support.traced.unusual_models import rows


@pytest.mark.parametrize("channels", [1, 3])
def test_a_weight_normalized_scalar_has_no_vanishing_gradient(trace_of, channels):
    def program():
        torch.manual_seed(5)
        weight_norm = nn.utils.parametrizations.weight_norm
        model = nn.Sequential(
            weight_norm(nn.Conv1d(channels, 8, 1)), nn.Tanh(), nn.Conv1d(8, 8, 3), nn.Tanh(),
            nn.Flatten(), nn.Linear(48, 8), nn.Tanh(), nn.Linear(8, 1),
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = random_rows(64, columns=8 * channels).reshape(64, channels, 8)
        for _ in range(20):
            train_step(optimizer, F.mse_loss(model(x)[:, 0], x.sum((1, 2))))

    assert fault_severities(trace_of(program)) == set()


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def test_vanishing_gradients_are_a_warning_and_no_error(trace_of):
    def program():
        layers = [layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
        model = nn.Sequential(*layers, nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for step in range(60):
            x, y = rows()
            optimizer.zero_grad()
            ((1 + 0.01 * step) * F.cross_entropy(model(x), y)).backward()
            optimizer.step()

    found = {(fault, severity) for fault, severity, _ in root_cause_list(trace_of(program))}

    assert ("vanishing gradients", "warning") in found
    assert not [severity for _, severity in found if severity == "error"]


class SkippingSGD(torch.optim.SGD):
    """Does not update parameters with non-finite gradients."""

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad.isfinite().all():
                parameter -= 0.01 * parameter.grad


@pytest.mark.parametrize("num_infinite_steps", [0, 5, 6])
def test_infinite_gradients_of_early_layers_are_not_vanishing_gradients(
    trace_of, num_infinite_steps
):
    """The other six layers have gradients of similar size at each of the six steps."""

    def program():
        layers = [layer for _ in range(7) for layer in (nn.Linear(8, 8), nn.Tanh())]
        model = nn.Sequential(*layers, nn.Linear(8, 1))
        optimizer = SkippingSGD(model.parameters())
        for number in range(6):
            optimizer.zero_grad()
            model(random_rows(16, columns=8)).square().mean().backward()
            if number < num_infinite_steps:
                for layer in model[:3:2]:
                    layer.weight.grad.fill_(torch.inf)
            optimizer.step()

    trace = trace_of(program)

    norms = [o.grad_norms[0] for s in trace.statistics for o in s.optimizers]
    assert len(norms) >= 4
    assert any(norm == torch.inf for norm in norms) is (num_infinite_steps > 0)
    assert VANISHING_GRADIENTS(trace) == ()
