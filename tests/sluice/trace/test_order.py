"""Which events are marks, and which are torch talking to itself (TRACE-1)."""

import contextlib
import functools
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from sluice.trace.subjects import Registry
from tests.support.traced import faulty, healthy
from tests.support.traced.healthy import HEALTHY


def kinds(trace):
    return [tuple(mark.kind for mark in word.marks) for word in trace.words if not word.is_open]


@pytest.mark.parametrize(
    ("name", "kind", "times"),
    [("checkpointing", "backward", 1), ("MLP", "schedule", 1), ("scaler that skips", "unscale", 1)],
)
def test_calls_inside_a_call_are_no_marks_of_their_own(trace_of, name, kind, times):
    later = kinds(trace_of(HEALTHY[name]))[1:]

    assert later
    assert all(word.count(kind) == times for word in later)


def test_a_scaler_that_unscales_by_itself_leaves_no_mark(trace_of):
    assert all("unscale" not in word for word in kinds(trace_of(faulty.clip_before_unscale)))


def test_a_skipped_step_is_told_from_one_that_was_made(trace_of):
    trace = trace_of(HEALTHY["scaler that skips"])
    ends = [word.step_mark.kind for word in trace.words if not word.is_open]

    assert ends[0] == "skip"
    assert "step" in ends
    assert trace.numbers[0].scale is None or trace.numbers[0].scale > trace.numbers[-1].scale


def test_a_closure_that_runs_more_than_once_has_its_later_marks_inside_of_the_step(trace_of):
    (word, *_) = kinds(trace_of(HEALTHY["closure"]))
    at = word.index("step")

    assert {"zero", "forward", "backward"} == set(word[:at]) - {"epoch", "batch", "mode"}
    assert {"zero", "forward", "backward"} == set(word[at + 1 : -1])
    assert word[-1] == "stepped"


@pytest.mark.parametrize("kind", ["by name", "by place"])
def test_a_closure_that_runs_once_is_told_as_a_step_without_one(trace_of, kind):
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

    words = kinds(trace_of(functools.partial(program, with_closure=True)))

    assert {*words} == {("forward", "zero", "backward", "step")}
    plain = kinds(trace_of(functools.partial(program, with_closure=False)))
    assert {*words} == {*plain}


def test_an_optimizer_that_never_runs_its_closure_has_a_step_all_the_same(trace_of):
    class Deaf(torch.optim.SGD):
        def step(self, closure=None):  # noqa: ARG002
            super().step()

    def program():
        model = healthy.net()
        torch.optim.SGD(model.parameters(), lr=0.1)  # from here on torch tells of its steps, too
        optimizer = Deaf(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.step(lambda: 0.0)

    trace = trace_of(program)

    assert trace.num_steps == 3
    assert kinds(trace)[0] == ("step", "stepped")


def test_a_closure_that_raises_hides_no_other_optimizer(trace_of):
    def program():
        model = healthy.net()
        first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
        with contextlib.suppress(ZeroDivisionError):
            first.step(lambda: 1 / 0)
        second.step()

    assert trace_of(program).num_steps == 1


def test_an_object_at_the_address_of_a_dead_one_is_another():

    registry = Registry(lambda index, it: SimpleNamespace(index=index, ref=weakref.ref(it)))
    one, other = torch.nn.Identity(), torch.nn.Identity()
    first = registry.find(one)
    registry.by_id[id(other)] = first  # as if the address were given again

    assert registry.find(other) is not first
    assert registry.find(one) is first
    del one
    gc.collect()
    assert [entry.index for entry, _ in registry.alive()] == [1]


def test_one_step_of_hundreds_whose_gradients_were_not_cleared_is_told(trace_of):
    def program():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(1, 331):
            if step != 262:
                optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    carried = [
        word
        for word in trace_of(program).words
        if word.step_mark is not None and "carried" in word.step_mark.flags
    ]

    assert [(word.first_step, word.last_step, word.count) for word in carried] == [(262, 262, 1)]
