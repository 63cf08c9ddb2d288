"""Non-finite losses and corrupted weights (TRACE-8)."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.records.step_statistics import StepScalars
from sluice.trace.report.replay.abnormal import first_abnormal
from sluice.trace.rules.library import judge
from sluice.trace.rules.losses.nonfinite_loss import NONFINITE_LOSS
from tests.support.traced.small_programs import random_rows, train_step
from tests.support.traced.unusual_models import mlp, rows


@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("is_overwritten", [True, False])
def test_a_weight_overwritten_between_steps_is_not_blamed_on_a_gradient(
    trace_of, optimizer_class, is_overwritten
):
    """The moments are finite but the weight is not; without moments the cause is unknown."""

    def program():
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = optimizer_class(model.parameters(), lr=1e-3)
        for number in range(90):
            hidden = model[0](random_rows(16, seed=number))
            if number == 80 and not is_overwritten:
                hidden.register_hook(lambda g: g * torch.nan)
            train_step(optimizer, model[2](model[1](hidden)).square().mean())
            if number == 80 and is_overwritten:
                with torch.no_grad():
                    model[0].weight[3, 2] = torch.nan

    trace = trace_of(program)
    first = diagnose(judge(trace))[0].finding

    is_known = is_overwritten and optimizer_class is torch.optim.Adam
    assert [fact.step for fact in trace.corrupted_weights] == [81] * is_known
    assert first.fault == ("non-finite loss" if is_known else "non-finite gradient")
    assert first.step == 81
    if is_known:
        assert "1 of 4 parameters became non-finite after step 81: Linear.weight." in first.what
        assert first_abnormal(trace).tensor == "weights of Linear.weight"


@pytest.mark.parametrize(
    ("nonfinite_steps", "checked", "cause"),
    [
        ((1,), "outputs of step 1;", "Later losses are finite"),
        ((3, 4), "outputs of steps 2 and 3;", "An optimizer step with"),
        ((4,), "outputs of steps 3 and 4;", "An optimizer step with"),
    ],
    ids=["first step", "last steps", "only the last step"],
)
def test_the_message_names_existing_steps_and_only_recorded_losses(
    trace_of, nonfinite_steps, checked, cause
):
    def program():
        model = nn.Linear(6, 1)
        train_step(torch.optim.SGD(model.parameters(), lr=0.1), model(random_rows(16)).mean())

    scalars = tuple(
        StepScalars(step=step, losses=(math.nan if step in nonfinite_steps else 1.0,))
        for step in range(1, 5)
    )
    (found,) = NONFINITE_LOSS(trace_of(program).model_copy(update={"scalars": scalars}))

    assert checked in found.fix
    assert found.cause.startswith(cause)


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def test_a_nonfinite_loss_is_an_error_only_if_it_persists(trace_of):
    def train(nonfinite_steps):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(12):
            x, y = rows()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            # The gradients stay finite: only the value of the loss is not.
            (loss + (float("inf") if step in nonfinite_steps else 0.0)).backward()
            optimizer.step()

    transient = root_cause_list(trace_of(lambda: train({3})))
    persistent = root_cause_list(trace_of(lambda: train(range(3, 12))))

    assert ("non-finite loss", "warning", 4) in transient
    assert ("non-finite loss", "error", 4) in persistent


def evaluated_program(nonfinite_epochs=(), *, reduction="mean", trains_finite=True):
    def program():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(4):
            for step in range(5):
                x, y = rows()
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                (loss if trains_finite or epoch or step else loss + math.inf).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                x, y = rows()
                out = model(x)
                if epoch in nonfinite_epochs:
                    out[3] = math.nan
                F.cross_entropy(out, y, reduction=reduction)
            model.train()

    return program


@pytest.mark.parametrize(
    ("epochs", "severity", "step"),
    [((0, 1, 2, 3), "error", 5), ((1,), "warning", 10), ((3,), "warning", 20)],
    ids=["always", "once", "only the last"],
)
def test_a_nonfinite_validation_loss_is_reported(trace_of, epochs, severity, step):
    (found,) = judge(trace_of(evaluated_program(epochs)))

    assert (found.fault, found.severity, found.step) == ("non-finite loss", severity, step)
    assert f"is nan after step {step}, and non-finite in {len(epochs)} of 4" in found.what


@pytest.mark.parametrize(
    ("options", "num_findings"),
    [
        ({}, 0),
        ({"nonfinite_epochs": (0, 1, 2, 3), "reduction": "none"}, 0),
        ({"nonfinite_epochs": (0, 1, 2, 3), "trains_finite": False}, 1),
    ],
    ids=["finite", "elements may be excluded", "the training loss is non-finite"],
)
def test_a_validation_loss_is_not_blamed_without_evidence(trace_of, options, num_findings):
    found = NONFINITE_LOSS(trace_of(evaluated_program(**options)))

    assert len(found) == num_findings
    assert not any("validation loss" in f.what for f in found)
