"""Programs without a torch optimizer: their updates are recorded and inspected (TRACE-1, -2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge

STEPS = 30


def make_generator(seed=1):
    return torch.Generator().manual_seed(seed)


def rows(num=STEPS * 16, columns=6, seed=1):
    return torch.randn(num, columns, generator=make_generator(seed))


def make_network(outputs=3):
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, outputs))


def update_under_no_grad(parameters, rate):
    with torch.no_grad():
        for p in parameters:
            p -= rate * p.grad


def update_data(parameters, rate):
    for p in parameters:
        p.data = p.data - rate * p.grad.data


class Momentum:
    """Custom optimizer with momentum."""

    def __init__(self):
        self.velocities = {}

    @torch.no_grad()
    def __call__(self, parameters, rate):
        for p in parameters:
            velocity = self.velocities.setdefault(p, torch.zeros_like(p))
            velocity.mul_(0.9).add_(p.grad)
            p.add_(velocity, alpha=-rate)


def fit(model, update, x, *, clears_first=True, passes=1):
    for batch in x.split(16):
        target = batch[:, :3].argmax(1)
        if clears_first:
            model.zero_grad()
        for _ in range(passes):
            F.cross_entropy(model(batch), target).div(passes).backward()
        update(list(model.parameters()), 0.1)
        if not clears_first:
            for p in model.parameters():
                p.grad = None


def severities(trace):
    return {(d.finding.fault, d.finding.severity) for d in diagnose(judge(trace))}


@pytest.mark.parametrize(
    "update", [update_under_no_grad, update_data, Momentum()], ids=["no_grad", "data", "class"]
)
@pytest.mark.parametrize("clears_first", [True, False])
def test_every_manual_update_is_recorded(trace_of, update, clears_first):
    trace = trace_of(lambda: fit(make_network(), update, rows(), clears_first=clears_first))

    assert trace.num_steps == STEPS
    if clears_first:
        events = [event.kind for event in trace.sequences[-1].events]
        assert events == ["zero", "forward", "backward", "step"]
    (optimizer,) = [o for o in trace.membership.optimizers if o.kind == "ImplicitOptimizer"]
    assert len(optimizer.groups[0].parameters) == 4
    assert severities(trace) == set()


def test_several_backward_passes_before_an_update_are_one_step(trace_of):
    assert (
        trace_of(lambda: fit(make_network(), update_under_no_grad, rows(), passes=3)).num_steps
        == STEPS
    )


def test_rules_apply_to_manual_updates(trace_of):
    def program():
        model = make_network()
        model.eval()
        with torch.no_grad():
            model(rows())
        fit(model, update_under_no_grad, rows())

    assert severities(trace_of(program)) == {("training in evaluation mode", "error")}


def test_negative_indices_are_reported_even_if_the_first_batch_has_no_collision(trace_of):
    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(12, 1, generator=make_generator()))

        def forward(self, ids):
            return self.table[ids][:, 0]

    def program():
        ids = torch.randint(-1, 11, (480,), generator=make_generator())
        ids[100:] = torch.randint(-1, 12, (380,), generator=make_generator(2))
        model = Tables()
        for batch in ids.split(16):
            model.zero_grad()
            (model(batch) - batch % 3).square().mean().backward()
            update_under_no_grad(model.parameters(), 0.05)

    assert severities(trace_of(program)) == {("index out of range", "error")}


def test_a_change_of_dtype_does_not_end_the_trace(trace_of):
    def program():
        model = make_network()
        fit(model, update_under_no_grad, rows())
        F.cross_entropy(model(rows(16)), rows(16)[:, :3].argmax(1)).backward()
        model.bfloat16()
        fit(model, update_under_no_grad, rows().bfloat16())

    trace = trace_of(program)

    assert trace.num_steps == 2 * STEPS
    assert not any(note.kind == "failed" for note in trace.notes)


@pytest.mark.parametrize("has_optimizer", [False, True])
def test_manual_updates_are_recorded_only_if_no_earlier_optimizer_steps(trace_of, has_optimizer):
    model = make_network()
    earlier_optimizer = torch.optim.SGD(
        model.parameters() if has_optimizer else make_network().parameters(), lr=0.1
    )

    def program():
        if not has_optimizer:
            fit(model, update_under_no_grad, rows())
            return
        for batch in rows().split(16):
            earlier_optimizer.zero_grad()
            F.cross_entropy(model(batch), batch[:, :3].argmax(1)).backward()
            earlier_optimizer.step()
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-5, 5).mul_(0.999)

    trace = trace_of(program)

    assert trace.num_steps == STEPS
    kinds = {o.kind for m in trace.memberships for o in m.optimizers}
    assert ("ImplicitOptimizer" in kinds) != has_optimizer


def test_gradients_without_an_update_are_not_steps(trace_of):
    def program():
        model, x = make_network(), rows()
        for batch in x.split(16):  # input gradients only
            batch.requires_grad_()
            model(batch).sum().backward()

    trace = trace_of(program)

    assert trace.num_steps == 0
    assert severities(trace) == set()


def test_manual_updates_are_not_recorded_after_an_optimizer_is_created(trace_of):
    def program():
        model = make_network()
        fit(model, update_under_no_grad, rows())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        shadow = make_network()
        for batch in rows(seed=2).split(16):
            optimizer.zero_grad()
            F.cross_entropy(model(batch), batch[:, :3].argmax(1)).backward()
            optimizer.step()
            with torch.no_grad():  # weight averaging is not a step
                for average, current in zip(shadow.parameters(), model.parameters(), strict=True):
                    average.lerp_(current, 0.1)

    trace = trace_of(program)

    assert trace.num_steps == 2 * STEPS
    kinds = [{o.kind for o in m.optimizers} for m in trace.memberships]
    assert "ImplicitOptimizer" in kinds[0]
    assert "ImplicitOptimizer" not in kinds[-1]
    assert "SGD" in kinds[-1]


def test_a_known_network_that_is_updated_later_is_added_to_the_optimizer(trace_of):
    def program():
        first, second = make_network(), nn.Linear(6, 3)
        with torch.no_grad():
            second(rows())
        fit(first, update_under_no_grad, rows(17 * 16))
        fit(second, update_under_no_grad, rows(4 * 16))

    (optimizer,) = trace_of(program).membership.optimizers

    assert len(optimizer.groups[0].parameters) == 6
