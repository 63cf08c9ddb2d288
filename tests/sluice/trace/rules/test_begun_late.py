"""Faults that begin after hundreds of ordinary steps, each beside a twin that is right (TRACE-16).

By then an order is expected, and most steps are not looked at closely.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace import routine
from sluice.trace.diagnosis import diagnose
from sluice.trace.evidence.losses import BY_HAND
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings

LATE = 80
"""Steps of the first phase."""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Expect an order after it followed itself some times, not hundreds."""
    monkeypatch.setattr(routine, "_TIMES", 8)


def told(trace):
    """Return what is wrong, without what is so only because of it."""
    return {(f.fault, f.step) for f in (d.finding for d in diagnose(judge(trace)))}


def causes(trace):
    return {fault for fault, _ in told(trace)}


def draws():
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(6, 3, generator=generator)

    def batch(rows=32):
        x = torch.randn(rows, 6, generator=generator)
        return x, (x @ weights).argmax(1)

    return batch


def net(outputs=3):
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def fit(model, optimizer, batch, steps, *, loss_of=F.cross_entropy, at=lambda _: None):
    for step in range(steps):
        at(step)
        x, y = batch()
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["cut", "right"])
def test_a_loss_that_is_made_anew_from_numbers_is_told(trace_of, kind):
    def hardest(output, y):
        worst = F.cross_entropy(output, y, reduction="none").sort(descending=True)[0][:12]
        return (torch.tensor(worst.tolist(), requires_grad=True) if kind == "cut" else worst).mean()

    def program():
        model, batch = net(), draws()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        fit(model, optimizer, batch, LATE)
        fit(model, optimizer, batch, LATE, loss_of=hardest)

    found = told(trace_of(program))

    if kind == "cut":
        ((fault, step),) = found
        assert fault == "loss without path"
        assert LATE < step <= LATE + 8
    else:
        assert "loss without path" not in {fault for fault, _ in found}


@pytest.mark.parametrize("is_new", [True, False], ids=["new optimizer", "same optimizer"])
@pytest.mark.parametrize("repeats", [True, False])
def test_a_loss_by_hand_that_repeats_outputs_in_a_second_phase_is_told(trace_of, is_new, repeats):
    def away(output, y):
        return (output if repeats else output[:, 0]).sub(y).abs().mean()

    def program():
        model, batch = net(1), draws()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        fit(model, optimizer, batch, LATE, loss_of=lambda o, y: F.mse_loss(o[:, 0], y.float()))
        if is_new:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        fit(model, optimizer, batch, 2 * LATE, loss_of=away)

    found = [step for fault, step in told(trace_of(program)) if fault == "loss broadcasts"]

    assert len(found) == repeats
    assert all(LATE < step <= LATE + (8 if is_new else 100) for step in found)


@pytest.mark.parametrize("kind", ["no_grad", "detach", "right", "frozen"])
def test_features_that_are_cut_off_in_a_second_phase_are_told(trace_of, kind):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
            self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 3)

        def features(self, x):
            if kind == "detach":
                return self.body(x).detach()
            with torch.set_grad_enabled(kind not in ("no_grad", "frozen")):
                return self.body(x)

    def program():
        net, batch = Net(), draws()
        optimizer = torch.optim.AdamW([*net.body.parameters(), *net.first.parameters()], lr=1e-3)
        fit(lambda x: net.first(net.body(x)), optimizer, batch, LATE)
        net.body.requires_grad_(kind != "frozen")
        tuned = [*net.body.parameters()] * (kind != "frozen") + [*net.second.parameters()]
        optimizer = torch.optim.AdamW(tuned, lr=1e-3)
        fit(lambda x: net.second(net.features(x)), optimizer, batch, LATE)

    found = [step for fault, step in told(trace_of(program)) if fault == "gradient cut"]

    assert len(found) == (kind in ("no_grad", "detach"))
    assert all(LATE < step <= LATE + 2 for step in found)


@pytest.mark.parametrize("chosen", [True, False])
def test_statistics_that_rest_while_a_part_is_tuned_are_a_choice(trace_of, chosen):
    def program():
        model, batch = (
            nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)),
            draws(),
        )
        fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), batch, LATE)
        model[0].requires_grad_(False)
        optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)
        for _ in range(4):
            if chosen:
                model.eval()
            fit(model, optimizer, batch, 20)
            model.eval()
            with torch.no_grad():
                F.cross_entropy(model(batch()[0]), batch()[1])

    assert ("training in evaluation mode" in causes(trace_of(program))) == (not chosen)


def test_steps_without_a_gradient_in_the_middle_are_no_lost_loss(trace_of):
    def program():
        model, batch = net(), draws()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        fit(model, optimizer, batch, LATE)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        head = torch.ones((), requires_grad=True)
        fit(model, optimizer, batch, 40, loss_of=lambda o, y: F.cross_entropy(o * head, y))
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        fit(model, optimizer, batch, LATE)

    assert "loss without path" not in causes(trace_of(program))


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "later"])
def test_a_loss_that_reaches_parameters_outside_the_optimizer_has_a_path(trace_of, late):
    """The optimizer holds a frozen head while the norms get gradients."""

    def program():
        model, batch = (
            nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
            draws(),
        )
        optimizer = torch.optim.Adam(model[3].parameters(), lr=1e-3)
        if late:
            model[:3].requires_grad_(False)
            fit(model, optimizer, batch, LATE)
        model.requires_grad_(False)
        model[1].requires_grad_(True)
        fit(model, optimizer, batch, LATE)

    found = causes(trace_of(program))

    assert "loss without path" not in found
    assert "parameters outside the optimizer" in found


@pytest.mark.parametrize(
    ("scale", "scales", "is_told"),
    # One whose scale begins too small grows it.
    [(2.0**24, True, False), (2.0**24, False, True), (1.0, True, False)],
)
def test_gradients_that_underflow_once_the_scaler_is_off_are_told(trace_of, scale, scales, is_told):
    def program():
        model, batch = net(1), draws()
        for phase in (True, scales):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-16)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=phase)
            for _ in range(LATE):
                x, y = batch()
                with torch.autocast("cpu", dtype=torch.float16):
                    output = model(x)
                loss = (output.float()[:, 0] * 1e-5 - y * 1e-5).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    found = causes(trace_of(program))

    assert ("gradients underflow" in found) is is_told


@pytest.mark.parametrize("kind", ["whole", "float"])
def test_a_second_warmup_that_never_leaves_zero_is_told(trace_of, kind):
    def program():
        model, batch = net(), draws()
        fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), batch, LATE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def warm(step):
            part = (step + 1) // 200 if kind == "whole" else (step + 1) / 200
            optimizer.param_groups[0]["lr"] = 1e-3 * part

        fit(model, optimizer, batch, LATE, at=warm)

    found = {(f.fault, f.severity, f.step) for f in judge(trace_of(program))}

    assert (("rate stays zero", "error", LATE + 2) in found) is (kind == "whole")


@pytest.mark.parametrize("kind", ["scaled", "unscaled"])
def test_a_clip_by_hand_that_begins_late_under_the_loss_scale_is_told(trace_of, kind):
    def program():
        model, batch = net(), draws()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
        for step in range(12 * LATE):
            x, y = batch()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if step >= LATE:
                if kind == "unscaled":
                    scaler.unscale_(optimizer)
                grads = [p.grad for p in model.parameters()]
                norm = torch.stack([g.norm() for g in grads]).norm()
                for grad in grads:
                    grad.mul_((2.0 / norm).clamp(max=1.0))
            scaler.step(optimizer)
            scaler.update()

    found = causes(trace_of(program))

    assert ("clip before unscale" in found) is (kind == "scaled")


@pytest.mark.parametrize("kind", ["lost", "kept", "torch's state only", "another"])
def test_a_schedule_by_hand_that_a_resume_winds_back_is_told(trace_of, tmp_path, kind):
    def rate(step):
        warm = 20
        share = step / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / 160))
        return 4e-3 * share + 1e-5

    def program():
        model, batch, count = net(), draws(), 0
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

        def at(_):
            nonlocal count
            is_other = kind == "another" and count >= LATE
            optimizer.param_groups[0]["lr"] = 1e-4 * (count - LATE + 1) if is_other else rate(count)
            count += 1

        fit(model, optimizer, batch, LATE, at=at)
        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "last.pt")
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
        states = torch.load(tmp_path / "last.pt")
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
        if kind == "lost":
            count = 0
        fit(
            model, optimizer, batch, LATE, at=at if kind != "torch's state only" else lambda _: None
        )

    found = told(trace_of(program))

    assert found == ({("resume lost state", LATE + 1)} if kind == "lost" else set())


@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("kind", ["undivided", "divided", "two losses of the same rows"])
def test_batches_that_are_added_up_late_without_a_division_are_told(trace_of, kind, every):
    def program():
        model, batch = net(), draws()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
        fit(model, optimizer, batch, LATE)
        for _ in range(LATE):
            optimizer.zero_grad()
            x, y = batch()
            for _ in range(4):
                if kind != "two losses of the same rows":
                    x, y = batch()
                loss = F.cross_entropy(model(x), y)
                (loss / 4 if kind == "divided" else loss).backward()
            optimizer.step()

    found = told(trace_of(program, TraceSettings(closely_every=every)))

    assert found == ({("accumulation not normalised", LATE + 1)} if kind == "undivided" else set())


def test_factors_that_begin_at_zero_in_a_second_phase_are_told(trace_of):
    class LowRank(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.down, self.up = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(16, 4))

        def forward(self, x):
            return self.base(x) + x @ self.down.T @ self.up.T

    def program():
        model, batch = net(), draws()
        fit(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch, LATE + 5)
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model[0] = LowRank(model[0])
        learns = [p for p in model.parameters() if p.requires_grad]
        fit(model, torch.optim.AdamW(learns, lr=1e-3), batch, LATE)

    assert told(trace_of(program)) == {("constant initialisation", LATE + 6)}


def test_a_loss_of_another_form_is_looked_at_when_it_comes(trace_of):
    """Squares of rows beside their targets, then distances of every row to every target."""
    first = 50  # after the statistics of step 44; the next ones are those of step 87

    def run():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for step in range(62):
            x, y = torch.randn(8, 4), 3 * torch.randn(8)
            apart = model(x) - y[:, None] if step < first else model(x) - y
            loss = apart.pow(2).mean() if step < first else apart.abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    looked = [fact.step for fact in trace_of(run).losses if fact.kind == BY_HAND]

    assert looked
    assert first <= looked[0] < first + TraceSettings().closely_every
