"""Recorded events: calls of the program, but not internal calls of torch (TRACE-1)."""

import contextlib
import functools
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from sluice.trace.objects.object_index import ObjectIndex
from tests.support.traced import faulty, healthy
from tests.support.traced.healthy import HEALTHY


def kinds(trace):
    """Return the event kinds of every complete sequence."""
    return [tuple(event.kind for event in s.events) for s in trace.sequences if not s.is_open]


@pytest.mark.parametrize(
    ("name", "kind", "times"),
    [("checkpointing", "backward", 1), ("MLP", "schedule", 1), ("scaler that skips", "unscale", 1)],
)
def test_nested_calls_are_not_recorded_as_events(trace_of, name, kind, times):
    later_sequences = kinds(trace_of(HEALTHY[name]))[1:]

    assert later_sequences
    assert all(sequence.count(kind) == times for sequence in later_sequences)


def test_unscaling_inside_a_scaler_is_not_an_event(trace_of):
    sequences = kinds(trace_of(faulty.clip_before_unscale))

    assert all("unscale" not in sequence for sequence in sequences)


def test_a_skipped_step_ends_with_a_skip_event(trace_of):
    trace = trace_of(HEALTHY["scaler that skips"])
    ends = [s.final_event.kind for s in trace.sequences if not s.is_open]

    assert ends[0] == "skip"
    assert "step" in ends
    assert trace.scalars[0].scale is None or trace.scalars[0].scale > trace.scalars[-1].scale


def test_later_runs_of_a_closure_are_inside_the_step(trace_of):
    (sequence, *_) = kinds(trace_of(HEALTHY["closure"]))
    step_position = sequence.index("step")

    assert {"zero", "forward", "backward"} == set(sequence[:step_position]) - {
        "epoch",
        "batch",
        "mode",
    }
    assert {"zero", "forward", "backward"} == set(sequence[step_position + 1 : -1])
    assert sequence[-1] == "stepped"


@pytest.mark.parametrize("kind", ["by name", "by position"])
def test_a_closure_that_runs_once_is_recorded_like_a_step_without_closure(trace_of, kind):
    def program(*, with_closure):
        model, batch = healthy.net(), healthy.rows()[:]
        optimizer = torch.optim.Adam(model.parameters())

        def closure():
            loss = F.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            return loss

        for _ in range(4):
            if not with_closure:
                closure()
                optimizer.step()
            elif kind == "by name":
                optimizer.step(closure=closure)
            else:
                optimizer.step(closure)

    sequences = kinds(trace_of(functools.partial(program, with_closure=True)))

    assert {*sequences} == {("forward", "zero", "backward", "step")}
    sequences_without_closure = kinds(trace_of(functools.partial(program, with_closure=False)))
    assert {*sequences} == {*sequences_without_closure}


def test_an_optimizer_that_ignores_its_closure_makes_a_step(trace_of):
    class IgnoresClosure(torch.optim.SGD):
        def step(self, closure=None):  # noqa: ARG002
            super().step()

    def program():
        model = healthy.net()
        torch.optim.SGD(
            model.parameters(), lr=0.1
        )  # from now on, torch calls the hooks of SGD.step
        optimizer = IgnoresClosure(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.step(lambda: 0.0)

    trace = trace_of(program)

    assert trace.num_steps == 3
    assert kinds(trace)[0] == ("step", "stepped")


def test_a_closure_that_raises_does_not_hide_steps_of_other_optimizers(trace_of):
    def program():
        model = healthy.net()
        first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
        with contextlib.suppress(ZeroDivisionError):
            first.step(lambda: 1 / 0)
        second.step()

    assert trace_of(program).num_steps == 1


def test_a_new_object_at_the_address_of_a_freed_one_gets_a_new_index():
    objects = ObjectIndex(lambda index, it: SimpleNamespace(index=index, ref=weakref.ref(it)))
    first_module, second_module = torch.nn.Identity(), torch.nn.Identity()
    first = objects.get_or_add(first_module)
    objects.by_id[id(second_module)] = first  # simulates a reused address

    assert objects.get_or_add(second_module) is not first
    assert objects.get_or_add(first_module) is first
    del first_module
    gc.collect()
    assert [entry.index for entry, _ in objects.live_items()] == [1]


def test_a_single_step_without_cleared_gradients_among_hundreds_is_recorded(trace_of):
    def program():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(1, 331):
            if step != 262:
                optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    accumulated = [
        sequence
        for sequence in trace_of(program).sequences
        if sequence.final_event is not None and "carried" in sequence.final_event.flags
    ]

    assert [(s.first_step, s.last_step, s.count) for s in accumulated] == [(262, 262, 1)]
