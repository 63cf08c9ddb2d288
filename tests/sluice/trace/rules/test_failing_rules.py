"""A rule that raises an error does not affect the others."""

import dataclasses

import torch
from torch import nn

from sluice.trace.rules import library
from tests.support.traced.small_programs import random_rows


def test_a_failing_rule_does_not_affect_the_others(trace_of, monkeypatch):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            model(x).square().mean().backward()
            optimizer.step()

    def fail(*_):
        raise KeyError(8)

    broken = dataclasses.replace(library.RULES[0], judge=fail)
    monkeypatch.setattr(library, "RULES", (broken, *library.RULES[1:]))
    found, failed = library.judge_with_failures(trace_of(program))

    assert "missing zero_grad" in {f.fault for f in found}
    assert failed == (f"Not checked: whether {broken.name} (KeyError: 8).",)
