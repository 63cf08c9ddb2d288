"""Manual clipping of scaled gradients (TRACE-12)."""

import pytest
import torch
from torch.nn import functional as F

from tests.support.traced.small_programs import (
    classifier,
    labeled_batches,
    random_rows,
    root_faults,
    root_findings,
    tanh_classifier,
)


@pytest.mark.parametrize(("unscales", "limit"), [(False, 2.0), (True, 2.0), (True, None)])
def test_manual_clipping_of_scaled_gradients_is_detected_from_the_norms(trace_of, unscales, limit):
    def program():
        model, x, y = classifier(), random_rows(64), torch.arange(64) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        for _ in range(40):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            if limit is not None:
                for parameter in model.parameters():
                    parameter.grad.mul_(min(limit / (float(norm) + 1e-6), 1.0))
            scaler.step(optimizer)
            scaler.update()

    found = [f for f in root_findings(trace_of(program)) if f.severity == "error"]

    if unscales:
        assert not found
    else:
        assert [f.fault for f in found] == ["clip before unscale"]
        assert "times the loss scale is 2," in found[0].what


FIRST_PHASE_STEPS = 80


@pytest.mark.usefixtures("early_fast_path")
@pytest.mark.parametrize("kind", ["scaled", "unscaled"])
def test_manual_clipping_of_scaled_gradients_that_starts_late_is_reported(trace_of, kind):
    def program():
        model, batch = tanh_classifier(), labeled_batches()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
        for step in range(12 * FIRST_PHASE_STEPS):
            x, y = batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if step >= FIRST_PHASE_STEPS:
                if kind == "unscaled":
                    scaler.unscale_(optimizer)
                grads = [p.grad for p in model.parameters()]
                norm = torch.stack([g.norm() for g in grads]).norm()
                for grad in grads:
                    grad.mul_((2.0 / norm).clamp(max=1.0))
            scaler.step(optimizer)
            scaler.update()

    found = root_faults(trace_of(program))

    assert ("clip before unscale" in found) is (kind == "scaled")
