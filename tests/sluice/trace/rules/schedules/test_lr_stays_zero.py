"""Learning rates that stay at zero (TRACE-11)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import (
    labeled_batches,
    random_rows,
    tanh_classifier,
    train_on_batches,
    train_step,
)


@pytest.mark.parametrize(("delay_steps", "severity"), [(12, "confirm"), (30, "error")])
def test_a_long_zero_learning_rate_is_an_error_even_if_it_ends(trace_of, delay_steps, severity):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(i / 10, 1.0))
        for number in range(60):
            train_step(optimizer, (model(x)[:, 0] - x.sum(1)).square().mean())
            if number >= delay_steps:
                schedule.step()

    (found,) = [f for f in judge(trace_of(program)) if f.fault == "learning rate stays zero"]

    assert (found.severity, found.step) == (severity, 1)
    assert f"exactly 0 in the first {delay_steps + 1} steps of this optimizer" in found.what
    assert found.what.endswith(f"it is positive from step {delay_steps + 2} on.")


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("kind", ["integer", "float"])
def test_a_second_warmup_that_stays_at_zero_is_reported(trace_of, kind):
    def program():
        model, batch = tanh_classifier(), labeled_batches()
        train_on_batches(
            model, torch.optim.Adam(model.parameters(), lr=1e-3), batch, FIRST_PHASE_STEPS
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def set_warmup_rate(step):
            share = (step + 1) // 200 if kind == "integer" else (step + 1) / 200
            optimizer.param_groups[0]["lr"] = 1e-3 * share

        train_on_batches(model, optimizer, batch, FIRST_PHASE_STEPS, before_step=set_warmup_rate)

    found = {(f.fault, f.severity, f.step) for f in judge(trace_of(program))}

    assert (("learning rate stays zero", "error", FIRST_PHASE_STEPS + 1) in found) is (
        kind == "integer"
    )
