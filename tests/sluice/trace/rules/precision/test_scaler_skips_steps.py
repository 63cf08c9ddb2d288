"""A gradient scaler that skips all steps from some step until the end of the run (TRACE-10)."""

import pytest
import torch

from sluice.trace.rules.library import judge
from sluice.trace.rules.precision.scaler_skips_steps import SCALER_SKIPS_STEPS
from tests.support.traced.healthy import HEALTHY

FAULT = "gradient scaler skips steps"


def make_program(skips, *, scale=2.0**10):
    """Return a program with one step per item of ``skips``; True: its gradients are NaN."""

    def program():
        gate = torch.nn.Linear(1, 1)
        optimizer = torch.optim.Adam(gate.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for is_skipped in skips:
            optimizer.zero_grad()
            out = gate(torch.ones(4, 1))
            loss = (out * 0).sqrt().sum() if is_skipped else out.square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return program


def test_gradients_that_are_never_finite_make_the_scaler_skip_every_step(trace_of):
    trace = trace_of(make_program([True] * 16))
    found = [f for f in judge(trace) if f.fault == FAULT]

    assert [(f.severity, f.step) for f in found] == [("error", 1)]
    assert "last 16 of 16 steps; the scale fell to 0.0312." in found[0].what


def test_skipped_steps_without_a_recorded_scale_are_reported_without_it(trace_of):
    trace = trace_of(make_program([True] * 30))
    scalars = tuple(record.model_copy(update={"scale": None}) for record in trace.scalars)

    (found,) = SCALER_SKIPS_STEPS(trace.model_copy(update={"scalars": scalars}))

    assert found.what == "The gradient scaler skipped the last 30 of 30 steps."


@pytest.mark.parametrize("earlier_skips", [set(), {1}, {2}, {1, 2, 3}])
def test_the_finding_begins_at_the_first_of_the_last_skipped_steps(trace_of, earlier_skips):
    skips = [*(number in earlier_skips for number in range(1, 5)), *[True] * 24]

    (found,) = SCALER_SKIPS_STEPS(trace_of(make_program(skips, scale=2.0**40)))

    assert (found.fault, found.severity, found.step) == (FAULT, "error", 5)
    # The recorded scale of a step is the scale before it: it was halved once per earlier skip.
    assert found.evidence == {
        "num_skipped": 24,
        "num_steps": 28,
        "scale": 2.0 ** (40 - 23 - len(earlier_skips)),
    }


@pytest.mark.parametrize(
    ("num_skips", "scale", "num_findings"),
    [
        # The scale stays above 1, so the next scale may be small enough.
        (23, 2.0**40, 0),
        (24, 2.0**40, 1),
        # The scale is below 1.
        (4, 1.0, 0),
        (5, 1.0, 1),
    ],
)
def test_the_scale_decides_how_many_skipped_steps_are_too_many(
    trace_of, num_skips, scale, num_findings
):
    found = SCALER_SKIPS_STEPS(trace_of(make_program([True] * num_skips, scale=scale)))

    assert [f.evidence["num_skipped"] for f in found] == [num_skips] * num_findings


def test_a_last_step_that_is_not_skipped_ends_the_fault(trace_of):
    assert SCALER_SKIPS_STEPS(trace_of(make_program([*[True] * 30, False]))) == ()


def test_a_scaler_whose_first_steps_overflow_is_not_reported(trace_of):
    assert judge(trace_of(HEALTHY["scaler that skips"])) == ()
