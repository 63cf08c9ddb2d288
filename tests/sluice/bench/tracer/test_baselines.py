"""What other monitors say (the baselines of the fault benchmark)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.bench.tracer.baselines import (
    BASELINES,
    MonitoredStep,
    MonitoredValidation,
    MonitorRecord,
    alarms_in,
)
from sluice.bench.tracer.watching import AnomalyFound, watched


def step(number, **fields):
    quiet = {
        "step": number,
        "losses": (1 / number,),
        "smallest_gradient": 0.1,
        "has_non_finite": False,
        "num_all_zero": 0,
        "unmoved": (),
        "smallest_update": 1e-3,
        "largest_update": 1e-2,
        "dead_share": 0.1,
    }
    return MonitoredStep(**(quiet | fields))


def sight(*steps, scores=(), labels=None):
    return MonitorRecord(steps=steps, scores=scores, labels=labels or {0: 5, 1: 5})


QUIET = tuple(step(n) for n in range(1, 21))
ALWAYS = {"always alarm": 1}


def with_step(number, **fields):
    return sight(*(step(n, **fields) if n == number else step(n) for n in range(1, 21)))


def test_a_run_without_anything_odd_has_no_alarm_but_the_constant_one():
    assert alarms_in(sight(*QUIET), anomaly=None) == ALWAYS


@pytest.mark.parametrize(
    ("seen", "name", "at"),
    [
        (with_step(7, losses=(float("nan"),)), "loss is non-finite", 7),
        (with_step(15, losses=(0.5,)), "loss spike", 15),
        (with_step(15, losses=(0.5,)), "debugger: loss not decreasing", 15),
        (with_step(3, smallest_gradient=9e-8), "debugger: vanishing gradient", 3),
        (with_step(3, has_non_finite=True), "debugger: exploding tensor", 3),
        (with_step(3, dead_share=0.6), "debugger: dead ReLU", 3),
        (with_step(3, largest_update=11.0), "debugger: weight update ratio", 3),
        (with_step(3, smallest_update=1e-9), "debugger: weight update ratio", 3),
        (with_step(3, num_all_zero=1), "debugger: all-zero tensor", 3),
        (sight(*QUIET, labels={0: 55, 1: 5}), "debugger: class imbalance", 1),
        (
            sight(*QUIET, scores=[MonitoredValidation(step=9, training=1.0, validation=1.2)]),
            "debugger: overfit",
            9,
        ),
        (
            sight(*(step(n, unmoved=(4,) if n > 5 else ()) for n in range(1, 21))),
            "debugger: unchanged tensor",
            8,
        ),
    ],
)
def test_each_threshold_raises_its_own_alarm(seen, name, at):
    alarms = alarms_in(seen, anomaly=None)

    assert alarms[name] == at
    assert set(alarms) <= set(BASELINES)
    assert ("SageMaker Debugger, any rule" in alarms) == any("debugger:" in key for key in alarms)


@pytest.mark.parametrize(
    "seen",
    [
        with_step(15, losses=(0.15,)),
        with_step(3, dead_share=0.5, largest_update=10.0, smallest_update=1e-8),
        sight(*(step(n, unmoved=(4,) if n % 3 else ()) for n in range(1, 21))),
        sight(*QUIET, labels={0: 50, 1: 5}),
        sight(*QUIET, scores=[MonitoredValidation(step=9, training=1.0, validation=1.09)]),
    ],
)
def test_what_stays_within_the_thresholds_raises_none(seen):
    alarms = alarms_in(seen, anomaly=None)

    assert {key for key in alarms if key != "debugger: loss not decreasing"} <= {
        *ALWAYS,
        "SageMaker Debugger, any rule",
    }


def train(model, batches, *, rate=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_hooks_see_losses_gradients_units_and_labels_and_go_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].bias.fill_(-50.0)
    batches = [(torch.randn(16, 4), torch.tensor([0, 0, 0, 1] * 4)) for _ in range(4)]
    backward = torch.autograd.backward

    with watched(with_anomaly_mode=False) as watch:
        train(model, batches)
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(batches[0][0]), batches[0][1])
    seen = watch.record()

    assert torch.autograd.backward is backward
    assert [s.dead_share for s in seen.steps] == [1.0] * 4
    assert seen.labels == {0: 48, 1: 16}
    assert [score.step for score in seen.scores] == [4]
    alarms = alarms_in(seen, anomaly=None)
    assert alarms["debugger: dead ReLU"] == alarms["debugger: all-zero tensor"] == 1
    assert alarms["debugger: unchanged tensor"] == 3


def test_a_program_watched_computes_the_same():
    batches = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(3)]

    def fit():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        train(model, batches)
        return model.state_dict()

    plain = fit()
    with watched(with_anomaly_mode=True):
        seen = fit()

    assert all(torch.equal(plain[name], seen[name]) for name in plain)


def divide_by_zero():
    """Make one good step and one whose gradient is 0 / 0."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        optimizer.zero_grad()
        found = model(torch.ones(3, 2))
        (found if number == 0 else (found * 0).square().sum().sqrt()).sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode_ends_the_program_at_its_step():
    with pytest.raises(AnomalyFound) as found, watched(with_anomaly_mode=True):
        divide_by_zero()

    assert found.value.step == 2


def test_the_programs_own_error_stays_its_own():
    with pytest.raises(RuntimeError, match="its own"), watched(with_anomaly_mode=True):
        raise RuntimeError("its own")
