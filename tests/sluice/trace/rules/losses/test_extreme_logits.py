"""Extreme logits before the first optimizer step (TRACE-14)."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.losses.extreme_logits import EXTREME_LOGITS

FAULT = "extreme logits"
MIN_LOSS = 2 * math.log(2)
"""Twice the loss of equal probabilities for two classes."""


def make_program(logits, targets, *, reduction="mean", steps=2, lr=1e-3):
    """Return a program whose network returns the logits before the first step."""

    def program():
        model = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.eye(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(logits), targets, reduction=reduction).sum().backward()
            optimizer.step()

    return program


def confident_rows(logit, num=8, num_wrong=8):
    """Return the rows (logit, 0), of which the first ``num_wrong`` belong to class 1."""
    return torch.tensor([[logit, 0.0]] * num), (torch.arange(num) < num_wrong).long()


def test_extreme_wrong_logits_are_a_warning(trace_of):
    (found,) = EXTREME_LOGITS(trace_of(make_program(*confident_rows(-30.0, num_wrong=0))))

    assert (found.fault, found.severity, found.step) == (FAULT, "warning", 1)
    assert found.what == (
        "Logits range from -30 to 0 at step 1. The loss is 30; equal probabilities would give "
        "0.693."
    )
    assert found.evidence == {"smallest": -30.0, "largest": 0.0}


@pytest.mark.parametrize(("logit", "num_findings"), [(10.0, 0), (10.01, 1)])
def test_logits_up_to_ten_are_moderate(trace_of, logit, num_findings):
    found = EXTREME_LOGITS(trace_of(make_program(*confident_rows(logit))))

    assert [f.evidence["largest"] for f in found] == [pytest.approx(logit)] * num_findings


@pytest.mark.parametrize(("num_wrong", "num_findings"), [(0, 0), (11, 0), (12, 1)])
def test_large_logits_that_are_mostly_correct_are_not_reported(trace_of, num_wrong, num_findings):
    """A wrong row has a loss of about 12, and a correct row of about 0."""
    assert (num_wrong * 12 / 100 > MIN_LOSS) == bool(num_findings)
    rows = confident_rows(12.0, num=100, num_wrong=num_wrong)

    assert len(EXTREME_LOGITS(trace_of(make_program(*rows)))) == num_findings


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_a_loss_that_is_not_a_mean_is_not_judged(trace_of, reduction):
    program = make_program(*confident_rows(30.0), reduction=reduction)

    assert EXTREME_LOGITS(trace_of(program)) == ()


def test_a_single_row_without_a_batch_is_not_judged(trace_of):
    logits, targets = confident_rows(30.0)

    assert EXTREME_LOGITS(trace_of(make_program(logits[0], targets[0]))) == ()


def test_extreme_logits_of_an_evaluation_are_not_reported(trace_of):
    def program():
        logits, targets = confident_rows(30.0)
        with torch.no_grad():
            F.cross_entropy(nn.Linear(2, 2)(logits), targets)
        make_program(*confident_rows(1.0))()

    assert EXTREME_LOGITS(trace_of(program)) == ()


def test_extreme_logits_caused_by_a_step_are_not_blamed_on_the_initialization(trace_of):
    logits, targets = confident_rows(1.0, num_wrong=4)
    trace = trace_of(make_program(logits, targets, steps=6, lr=1e3))

    assert max(abs(record.largest) for record in trace.losses) > 100
    assert EXTREME_LOGITS(trace) == ()
