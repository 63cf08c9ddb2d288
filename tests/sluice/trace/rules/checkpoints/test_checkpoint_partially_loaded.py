"""Checkpoints whose optimizer state is not loaded (TRACE-13)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.traced.small_programs import random_rows, root_causes


@pytest.mark.parametrize("kind", ["not loaded", "loaded", "another rate"])
def test_an_optimizer_state_that_is_saved_but_not_loaded_is_reported(trace_of, tmp_path, kind):
    def fit(model, optimizer):
        x = random_rows(64)
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            optimizer.step()

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        fit(model, optimizer)
        path = tmp_path / "state.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
        state = torch.load(path)
        model.load_state_dict(state["model"])
        rate = 0.001 if kind == "another rate" else 0.01
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        if kind == "loaded":
            optimizer.load_state_dict(state["optimizer"])
        fit(model, optimizer)

    severities = {
        s for fault, s, _ in root_causes(trace_of(program)) if fault == "resume state lost"
    }

    assert (
        severities == {"not loaded": {"error"}, "loaded": set(), "another rate": {"confirm"}}[kind]
    )
