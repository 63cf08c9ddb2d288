"""Clipping limits far below the gradient norm (TRACE-12)."""

import pytest
import torch
from torch import nn

from sluice.trace.records.step_statistics import ClippingRecord, StepScalars
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers
from sluice.trace.rules.gradients.clip_norm_mismatch import CLIP_NORM_MISMATCH
from tests.support.traced import loading_and_resuming as programs
from tests.support.traced.small_programs import random_rows, train_step


@pytest.mark.parametrize(
    ("program", "norm", "warns"),
    [
        (programs.optimizer_without_state, 500.0, True),
        (programs.optimizer_without_state, 5.0, False),
        (programs.resumed_with_its_state, 500.0, False),
    ],
    ids=["SGD, far above", "SGD, near", "AdamW, far above"],
)
def test_a_clipping_limit_far_below_every_norm_is_a_warning(trace_of, program, norm, warns):
    found = CLIP_NORM_MISMATCH(add_clip_records(trace_of(program), norm))

    assert [(f.severity, f.evidence["ratio"]) for f in found] == [("warning", norm)] * warns


@pytest.mark.parametrize(("optimizer_name", "warns"), [("ASGD", True), ("Rprop", False)])
def test_an_optimizer_that_uses_only_the_sign_of_gradients_is_not_reported(
    trace_of, optimizer_name, warns
):
    def program():
        model = nn.Linear(6, 1)
        optimizer = getattr(torch.optim, optimizer_name)(model.parameters())
        for _ in range(3):
            train_step(optimizer, model(random_rows(16)).square().mean())

    assert bool(CLIP_NORM_MISMATCH(add_clip_records(trace_of(program), 500.0))) is warns


def add_clip_records(trace, norm):
    """Return the trace with 40 steps whose gradients are clipped from this norm to 1."""
    clip = ClippingRecord(optimizer=stepping_optimizers(trace)[0], norm=norm, max_norm=1.0)
    scalars = tuple(StepScalars(step=s, losses=(1.0,), clips=(clip,)) for s in range(1, 41))
    return trace.model_copy(update={"scalars": scalars})
