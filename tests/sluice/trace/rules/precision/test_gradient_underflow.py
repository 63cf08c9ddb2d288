"""float16 gradients that underflow (TRACE-10)."""

import pytest
import torch

from tests.support.traced.small_programs import labeled_batches, root_faults, tanh_classifier

FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize(
    ("scale", "is_enabled_later", "is_reported"),
    # A scaler whose scale is too small at the start increases it.
    [(2.0**24, True, False), (2.0**24, False, True), (1.0, True, False)],
)
def test_gradients_that_underflow_after_the_scaler_is_disabled_are_reported(
    trace_of, scale, is_enabled_later, is_reported
):
    def program():
        model, batch = tanh_classifier(1), labeled_batches()
        for is_enabled in (True, is_enabled_later):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-16)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=is_enabled)
            for _ in range(FIRST_PHASE_STEPS):
                x, y = batch()
                with torch.autocast("cpu", dtype=torch.float16):
                    output = model(x)
                loss = (output.float()[:, 0] * 1e-5 - y * 1e-5).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    found = root_faults(trace_of(program))

    assert ("gradient underflow" in found) is is_reported
