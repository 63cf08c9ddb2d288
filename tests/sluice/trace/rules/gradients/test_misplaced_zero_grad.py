"""Gradients that are cleared between backward() and the step (TRACE-13)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.gradients.misplaced_zero_grad import MISPLACED_ZERO_GRAD
from tests.support.traced.small_programs import (
    classifier,
    fault_severities,
    random_rows,
    root_causes,
    root_findings,
)


@pytest.mark.parametrize("clears", ["before", "before, manually", "not at all", "after"])
def test_a_hook_that_clears_gradients_before_the_update_is_reported(trace_of, clears):
    def scale_gradients(optimizer, factor):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(factor)

    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if clears == "before":
            optimizer.register_step_pre_hook(lambda o, *_: o.zero_grad(set_to_none=False))
        elif clears == "before, manually":
            optimizer.register_step_pre_hook(lambda o, *_: scale_gradients(o, 0.0))
        elif clears == "not at all":
            optimizer.register_step_pre_hook(lambda o, *_: scale_gradients(o, 0.5))
        else:
            optimizer.register_step_pre_hook(lambda *_: None)
            optimizer.register_step_post_hook(lambda o, *_: o.zero_grad())
        for _ in range(6):
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            optimizer.step()

    found = ("misplaced zero_grad", "error") in fault_severities(trace_of(program))
    assert found is clears.startswith("before")


@pytest.mark.parametrize("zeroing", ["in place", "replaced", "some rows", "none"])
def test_gradients_zeroed_by_the_program_after_clipping_are_reported(trace_of, zeroing):
    def program():
        model, x, y = classifier(), random_rows(64), torch.arange(64) % 3
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(12):
            for parameter in model.parameters():
                parameter.grad = None
            F.cross_entropy(model(x), y).backward()
            for parameter in model.parameters():
                parameter.grad.mul_(0.5)
                if zeroing == "in place":
                    parameter.grad.zero_()
                elif zeroing == "replaced":
                    parameter.grad = torch.zeros_like(parameter)
                elif zeroing == "some rows":  # intentionally frozen rows
                    parameter.grad[:2] = 0
            optimizer.step()

    found = [f for f in root_findings(trace_of(program)) if f.severity == "error"]

    if zeroing in ("in place", "replaced"):
        assert [(f.fault, f.step) for f in found] == [("misplaced zero_grad", 1)]
        assert "in 12 of 12 steps" in found[0].what
    else:
        assert not found


class SelfClearingSGD(torch.optim.SGD):
    """Clears the gradients after its update."""

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
        self.zero_grad()
        return loss


@pytest.mark.parametrize(
    "kind", ["after backward", "to None", "before forward", "by the optimizer"]
)
def test_a_closure_that_clears_its_own_gradients_is_reported(trace_of, kind):
    is_wrong = kind in ("after backward", "to None")

    def program():
        model, x = nn.Linear(6, 1), random_rows(64)
        optimizer_class = SelfClearingSGD if kind == "by the optimizer" else torch.optim.SGD
        optimizer = optimizer_class(model.parameters(), lr=0.01)

        def closure():
            if kind == "before forward":
                optimizer.zero_grad()
            loss = F.mse_loss(model(x)[:, 0], x.sum(1))
            loss.backward()
            if is_wrong:
                optimizer.zero_grad(set_to_none=kind == "to None")
            return loss

        for _ in range(20):
            optimizer.step(closure)

    found = {f for f in root_causes(trace_of(program)) if f[1] == "error"}

    assert found == ({("misplaced zero_grad", "error", 1)} if is_wrong else set())


class TwoPassSGD(torch.optim.SGD):
    """Averages the gradients of two runs of its closure, and clears them after its update."""

    @torch.no_grad()
    def step(self, closure):
        parameters = self.param_groups[0]["params"]
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(2):
            with torch.enable_grad():
                closure()
            for total, parameter in zip(totals, parameters, strict=True):
                if parameter.grad is not None:
                    total += parameter.grad / 2
        for total, parameter in zip(totals, parameters, strict=True):
            parameter -= self.param_groups[0]["lr"] * total
        self.zero_grad()


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_closure_that_runs_twice_and_clears_its_gradients_is_reported(trace_of, is_wrong):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = TwoPassSGD(model.parameters(), lr=0.01)

        def closure():
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            if is_wrong:
                optimizer.zero_grad()

        for _ in range(20):
            optimizer.step(closure)

    trace = trace_of(program)
    assert any(sequence.find("stepped") for sequence in trace.sequences)

    found = MISPLACED_ZERO_GRAD(trace)

    assert [f.fault for f in found] == ["misplaced zero_grad"] * is_wrong


class IdleOptimizer(torch.optim.SGD):
    """Runs its closure twice and updates nothing."""

    def step(self, closure):
        closure()
        closure()


def test_all_steps_are_counted_if_only_some_closures_clear_gradients(trace_of):
    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = IdleOptimizer(model.parameters(), lr=0.01)

        def closure():
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            if clears:
                optimizer.zero_grad()

        for number in range(1, 21):
            clears = number > 12
            optimizer.step(closure)

    (found,) = MISPLACED_ZERO_GRAD(trace_of(program))

    assert "in 8 of 20 steps gradients were cleared" in found.what


def test_clearing_the_gradients_of_another_optimizer_is_not_reported(trace_of):
    def program():
        model, other = nn.Linear(6, 1), nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        other_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
        for _ in range(6):
            optimizer.zero_grad()
            model(random_rows(16)).square().mean().backward()
            other_optimizer.zero_grad()
            optimizer.step()
            other(random_rows(16)).square().mean().backward()
            other_optimizer.step()

    assert MISPLACED_ZERO_GRAD(trace_of(program)) == ()


def make_program(cleared_steps, *, forward_before_clearing=False):
    """Return a program of 6 steps that clears new gradients before some steps, counted from 1."""

    def program():
        model, x = nn.Linear(6, 1), random_rows(16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number in range(1, 7):
            optimizer.zero_grad()
            F.mse_loss(model(x)[:, 0], x.sum(1)).backward()
            if number in cleared_steps:
                if forward_before_clearing:
                    model(x)
                optimizer.zero_grad()
            optimizer.step()

    return program


@pytest.mark.parametrize(
    ("cleared_steps", "expected"),
    # The program may drop a single batch, for example if its loss is an outlier.
    [(set(), []), ({3}, []), ({3, 5}, [(3, 2)]), (set(range(1, 7)), [(1, 6)])],
)
def test_two_cleared_steps_are_reported_from_the_first_on(trace_of, cleared_steps, expected):
    found = MISPLACED_ZERO_GRAD(trace_of(make_program(cleared_steps)))

    assert [(f.step, f.evidence["num_cleared_steps"]) for f in found] == expected
    assert [(f.fault, f.severity, f.evidence["num_steps"]) for f in found] == [
        ("misplaced zero_grad", "error", 6)
    ] * len(expected)


def test_gradients_cleared_for_the_next_batch_are_not_reported(trace_of):
    program = make_program(set(range(1, 7)), forward_before_clearing=True)

    assert MISPLACED_ZERO_GRAD(trace_of(program)) == ()
