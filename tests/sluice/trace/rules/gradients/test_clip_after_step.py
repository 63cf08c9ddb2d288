"""Gradient clipping after the optimizer step (TRACE-12)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.gradients.clip_after_step import CLIP_AFTER_STEP
from tests.support.traced.small_programs import random_rows

STEPS = 6


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def make_program(*, clips_before=lambda _: False, clips_after=lambda _: False):
    """Return a program that clips before or after the step at the steps, from 1, that match."""

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            model(random_rows(16)).square().mean().backward()
            if clips_before(number):
                clip(model)
            optimizer.step()
            if clips_after(number):
                clip(model)

    return program


def test_clippings_after_every_step_are_reported(trace_of):
    (found,) = CLIP_AFTER_STEP(trace_of(make_program(clips_after=lambda _: True)))

    assert (found.fault, found.severity, found.step) == ("clip after step", "error", 1)
    assert found.what.startswith("SGD: 6 steps were followed by a clipping")
    assert found.evidence == {"num_late": STEPS}


@pytest.mark.parametrize(
    ("late_steps", "expected"), [({3}, []), ({3, 5}, [(3, 2)]), ({1, 2}, [(1, 2)]), ({STEPS}, [])]
)
def test_two_late_clippings_are_reported_from_the_first_on(trace_of, late_steps, expected):
    found = CLIP_AFTER_STEP(trace_of(make_program(clips_after=lambda i: i in late_steps)))

    assert [(f.step, f.evidence["num_late"]) for f in found] == expected


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_clipping_before_the_first_step_is_not_late(trace_of, has_gradients):
    """Each turn begins with a clipping, which follows the step of the turn before it."""

    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if has_gradients:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        for _ in range(STEPS):
            clip(model)
            optimizer.zero_grad()
            model(random_rows(16)).square().mean().backward()
            optimizer.step()

    (found,) = CLIP_AFTER_STEP(trace_of(program))

    assert (found.step, found.evidence) == (1, {"num_late": STEPS - 1})


@pytest.mark.parametrize("useful_steps", [set(range(1, STEPS + 1)), {4}])
def test_a_clipping_between_backward_and_step_is_useful(trace_of, useful_steps):
    """A program may clip again after the step, for example to log the norm."""
    program = make_program(clips_before=useful_steps.__contains__, clips_after=lambda _: True)

    assert CLIP_AFTER_STEP(trace_of(program)) == ()


@pytest.mark.parametrize("is_late", [False, True])
def test_two_optimizers_may_clip_and_step_one_after_another(trace_of, is_late):
    """Both step on the gradients of one backward pass; the second clips after the first step."""

    def program():
        encoder, head = nn.Linear(6, 4), nn.Linear(4, 1)
        pairs = [(part, torch.optim.SGD(part.parameters(), lr=0.01)) for part in (encoder, head)]
        for _ in range(STEPS):
            encoder.zero_grad()
            head.zero_grad()
            head(encoder(random_rows(16))).square().mean().backward()
            for part, optimizer in pairs:
                if not is_late:
                    clip(part)
                optimizer.step()
            if is_late:
                for part, _ in pairs:
                    clip(part)

    found = CLIP_AFTER_STEP(trace_of(program))

    assert [(f.step > 0, f.evidence["num_late"]) for f in found] == [(True, STEPS)] * 2 * is_late


def test_optimizers_that_call_their_closure_several_times_are_not_judged(trace_of):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = model(random_rows(16)).square().mean()
            loss.backward()
            return loss

        for _ in range(STEPS):
            optimizer.step(closure)
            clip(model)

    assert CLIP_AFTER_STEP(trace_of(program)) == ()
