"""Other training monitors, which are the baselines of the fault benchmark."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.bench.tracer.baselines import (
    BASELINES,
    MonitoredStep,
    MonitoredValidation,
    MonitorRecord,
    find_alarms,
)
from sluice.bench.tracer.watching import AnomalyFound, monitored


def make_step(number, **fields):
    healthy = {
        "step": number,
        "losses": (1 / number,),
        "smallest_gradient": 0.1,
        "has_non_finite_value": False,
        "num_all_zero_tensors": 0,
        "unchanged_parameters": (),
        "smallest_update_ratio": 1e-3,
        "largest_update_ratio": 1e-2,
        "dead_share": 0.1,
    }
    return MonitoredStep(**(healthy | fields))


def make_record(*steps, validations=(), label_counts=None):
    return MonitorRecord(
        steps=steps, validations=validations, label_counts=label_counts or {0: 5, 1: 5}
    )


HEALTHY_STEPS = tuple(make_step(n) for n in range(1, 21))
ALWAYS = {"always alarm": 1}


def with_step(number, **fields):
    return make_record(
        *(make_step(n, **fields) if n == number else make_step(n) for n in range(1, 21))
    )


def test_healthy_run_has_only_the_constant_alarm():
    assert find_alarms(make_record(*HEALTHY_STEPS), anomaly_step=None) == ALWAYS


@pytest.mark.parametrize(
    ("record", "name", "at"),
    [
        (with_step(7, losses=(float("nan"),)), "loss is non-finite", 7),
        (with_step(15, losses=(0.5,)), "loss spike", 15),
        (with_step(15, losses=(0.5,)), "debugger: loss not decreasing", 15),
        (with_step(3, smallest_gradient=9e-8), "debugger: vanishing gradient", 3),
        (with_step(3, has_non_finite_value=True), "debugger: exploding tensor", 3),
        (with_step(3, dead_share=0.6), "debugger: dead ReLU", 3),
        (with_step(3, largest_update_ratio=11.0), "debugger: weight update ratio", 3),
        (with_step(3, smallest_update_ratio=1e-9), "debugger: weight update ratio", 3),
        (with_step(3, num_all_zero_tensors=1), "debugger: all-zero tensor", 3),
        (make_record(*HEALTHY_STEPS, label_counts={0: 55, 1: 5}), "debugger: class imbalance", 1),
        (
            make_record(
                *HEALTHY_STEPS,
                validations=[MonitoredValidation(step=9, training_loss=1.0, validation_loss=1.2)],
            ),
            "debugger: overfit",
            9,
        ),
        (
            make_record(
                *(make_step(n, unchanged_parameters=(4,) if n > 5 else ()) for n in range(1, 21))
            ),
            "debugger: unchanged tensor",
            8,
        ),
    ],
)
def test_each_threshold_raises_its_own_alarm(record, name, at):
    alarms = find_alarms(record, anomaly_step=None)

    assert alarms[name] == at
    assert set(alarms) <= set(BASELINES)
    assert ("SageMaker Debugger, any rule" in alarms) == any("debugger:" in key for key in alarms)


@pytest.mark.parametrize(
    "record",
    [
        with_step(15, losses=(0.15,)),
        with_step(3, dead_share=0.5, largest_update_ratio=10.0, smallest_update_ratio=1e-8),
        make_record(
            *(make_step(n, unchanged_parameters=(4,) if n % 3 else ()) for n in range(1, 21))
        ),
        make_record(*HEALTHY_STEPS, label_counts={0: 50, 1: 5}),
        make_record(
            *HEALTHY_STEPS,
            validations=[MonitoredValidation(step=9, training_loss=1.0, validation_loss=1.09)],
        ),
    ],
)
def test_values_within_the_thresholds_raise_no_alarm(record):
    alarms = find_alarms(record, anomaly_step=None)

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


def test_hooks_record_units_labels_and_validation_and_are_removed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].bias.fill_(-50.0)
    batches = [(torch.randn(16, 4), torch.tensor([0, 0, 0, 1] * 4)) for _ in range(4)]
    backward = torch.autograd.backward

    with monitored(with_anomaly_mode=False) as watch:
        train(model, batches)
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(batches[0][0]), batches[0][1])
    record = watch.record()

    assert torch.autograd.backward is backward
    assert [s.dead_share for s in record.steps] == [1.0] * 4
    assert record.label_counts == {0: 48, 1: 16}
    assert [validation.step for validation in record.validations] == [4]
    alarms = find_alarms(record, anomaly_step=None)
    assert alarms["debugger: dead ReLU"] == alarms["debugger: all-zero tensor"] == 1
    assert alarms["debugger: unchanged tensor"] == 3


def test_monitored_program_computes_the_same_weights():
    batches = [(torch.randn(16, 4), torch.randint(3, (16,))) for _ in range(3)]

    def fit():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        train(model, batches)
        return model.state_dict()

    plain_weights = fit()
    with monitored(with_anomaly_mode=True):
        monitored_weights = fit()

    assert all(
        torch.equal(weight, monitored_weights[name]) for name, weight in plain_weights.items()
    )


def divide_by_zero():
    """Make one good step, and one with the gradient 0 / 0."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        optimizer.zero_grad()
        found = model(torch.ones(3, 2))
        (found if number == 0 else (found * 0).square().sum().sqrt()).sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_anomaly_mode_ends_the_program_at_the_faulty_step():
    with pytest.raises(AnomalyFound) as found, monitored(with_anomaly_mode=True):
        divide_by_zero()

    assert found.value.step == 2


def test_error_of_the_program_is_not_changed():
    with pytest.raises(RuntimeError, match="its own"), monitored(with_anomaly_mode=True):
        raise RuntimeError("its own")
