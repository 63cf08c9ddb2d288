"""The fast path records the same events and losses as full recording (TRACE-1)."""

import gc
import random
import threading
from itertools import groupby

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.attach import traced
from sluice.trace.prediction import step_patterns
from sluice.trace.report.step_profile import profile_steps
from sluice.trace.rules.library import judge
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import find_traces, read_trace


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Predict a pattern after a few repeats instead of hundreds."""
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 8)
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS_KNOWN", 3)


@pytest.fixture
def run(tmp_path):
    def run_program(program, every, **more):
        folder = tmp_path / f"every-{every}"
        settings = TraceSettings(full_sample_every=every, fast_step_s=10.0, **more)
        try:
            with traced(folder, settings):
                program()
        except ZeroDivisionError:
            pass
        return read_trace(find_traces(folder)[0])

    return run_program


@pytest.fixture
def both(run):
    """Return two traces of a program: with every step, and with one step in 16, recorded fully."""

    def run_twice(program, **more):
        gc.collect()  # optimizers of other tests that still exist also get an index
        torch.manual_seed(0)
        first = run(program, 1, **more)
        gc.collect()
        torch.manual_seed(0)
        return first, run(program, 16, **more)

    return run_twice


def orders(trace):
    return [
        (
            [(m.kind, m.object_id, m.related_id, m.flags, m.repeat_length) for m in word.events],
            word.first_step,
            word.last_step,
            word.count,
            word.is_open,
        )
        for word in trace.sequences
    ]


def num_full_records(trace):
    """Return the number of fully recorded recent steps."""
    return len(trace.recent_steps)


def losses(trace):
    return {numbers.step: numbers.losses for numbers in trace.scalars}


class Loop:
    """A training in which some steps deviate from the usual pattern."""

    def __init__(self, steps=200, at=None, every=None, clears="before"):
        self.steps, self.at, self.every, self.clears = steps, at or {}, every or {}, clears

    def clear(self, place, optimizer, odd):
        """Clear gradients in the configured way, if this is the configured place."""
        is_in_place = self.clears.endswith("in place") != ("in place" in odd)
        if place != ("after" if self.clears == "after" else "before") or "no zero" in odd:
            return
        if self.clears == "never":
            return
        if not self.clears.startswith("manually"):
            optimizer.zero_grad(set_to_none=not is_in_place)
            return
        for parameter in optimizer.param_groups[0]["params"]:
            if is_in_place and parameter.grad is not None:
                parameter.grad.zero_()
            elif not is_in_place:
                parameter.grad = None

    def __call__(self):
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        criterion = nn.CrossEntropyLoss()
        x, y = torch.randn(96, 6), torch.randint(3, (96,))
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        held = DataLoader(TensorDataset(x[:8], y[:8]), batch_size=4)
        step = 0
        while step < self.steps:
            for rows, labels in loader:
                step += 1
                odd = {self.at.get(step), *(n for n, k in self.every.items() if step % k == 0)}
                if step > self.steps:
                    return
                if "raises" in odd:
                    raise ZeroDivisionError
                if "bad row" in odd:
                    rows = rows.clone()
                    rows[1, 2] = float("nan")
                self.clear("before", optimizer, odd)
                if "twice" in odd:
                    criterion(model(rows), labels).backward()
                loss = criterion(model(rows), labels)
                if "no backward" not in odd:
                    loss.backward()
                if "no clip" not in odd:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if "zero late" in odd:
                    optimizer.zero_grad()
                if "group" in odd:
                    more = nn.Linear(2, 2)
                    optimizer.add_param_group({"params": more.parameters()})
                optimizer.step(*[lambda: 0.0] * ("closure" in odd))
                self.clear("after", optimizer, odd)
                if "no schedule" not in odd:
                    scheduler.step()
                if "evaluates" in odd:
                    model.eval()
                    with torch.no_grad():
                        for other, targets in held:
                            criterion(model(other), targets)
                    model.train()
                if "evaluates bare" in odd:
                    with torch.no_grad():
                        criterion(model(x), y)
                if "another" in odd:
                    other = nn.Linear(6, 3)
                    criterion(other(rows), labels).backward()


ODD = (
    "no zero", "in place", "twice", "no backward", "no clip", "zero late", "group", "no schedule",
    "evaluates", "evaluates bare", "another", "closure",
)  # fmt: skip


def test_nearly_all_repeated_steps_are_not_recorded_fully(both):
    every, some = both(Loop(steps=120))

    assert num_full_records(every) == 120
    assert num_full_records(some) < 60
    assert orders(every) == orders(some)


@pytest.mark.parametrize("odd", ODD)
def test_a_single_deviating_step_is_recorded_as_with_full_recording(both, odd):
    every, some = both(Loop(at={105: odd}))

    assert orders(every) == orders(some)
    assert some.num_steps == 200


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("period", [pytest.param(7, marks=pytest.mark.exhaustive), 33])
def test_periodic_deviating_steps_are_recorded_as_with_full_recording(both, odd, period):
    every, some = both(Loop(every={odd: period}))

    assert orders(every) == orders(some)


def test_kept_gradients_are_recorded_at_any_distance_from_the_last_full_sample(both):
    every, some = both(Loop(steps=220, at=dict.fromkeys(range(60, 220, 17), "no zero")))

    assert orders(every) == orders(some)
    assert any("carried" in mark[3] for word in orders(some) for mark in word[0])


CLEARED = [
    (clears, odd)
    for clears in ("in place", "after", "manually", "manually in place", "never")
    for odd in ODD
    # Clearing without an event is only detected in fully recorded steps.
    if not (clears.startswith("manually") and odd in ("no zero", "no backward"))
]


@pytest.mark.parametrize(("clears", "odd"), CLEARED)
def test_every_way_of_clearing_gradients_is_recorded_as_with_full_recording(both, clears, odd):
    every, some = both(Loop(steps=110, every={odd: 23}, clears=clears))

    assert orders(every) == orders(some)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [*range(5), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(5, 25))],
)
def test_mixed_ways_of_clearing_gradients_are_recorded_as_with_full_recording(both, seed):
    chance = random.Random(seed)
    at = {
        s: chance.choice(ODD) for s in range(1, 300) if chance.random() < chance.choice((0.02, 0.2))
    }

    every, some = both(Loop(steps=300, at=at))

    assert orders(every) == orders(some)
    assert losses(every) == losses(some)


def test_every_loss_is_recorded(both):
    every, some = both(Loop(steps=150))

    assert len(losses(every)) == 150
    assert losses(every) == losses(some)


def test_a_nonfinite_loss_is_recorded_at_its_step_with_its_input(both):
    every, some = both(Loop(at={101: "bad row"}))

    for trace in (every, some):
        (fact,) = [bad for bad in trace.nonfinite_tensors if bad.what == "input"]
        assert (fact.step, fact.columns, fact.rows) == (100, (2,), (1,))
    faults = [{(f.fault, f.step) for f in judge(t)} for t in (every, some)]
    assert faults[0] == faults[1]
    assert faults[0]


def test_a_nonfinite_target_is_recorded_at_its_step(both):
    def program():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(100):
            x = torch.randn(8, 4)
            y = x[:, :1].clone()
            y[3] = float("nan") if step == 90 else y[3]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    for trace in both(program):
        assert ("non-finite input", 91) in {(f.fault, f.step) for f in judge(trace)}


def test_events_before_an_exception_are_recorded(both):
    every, some = both(Loop(at={110: "raises"}))

    assert orders(every) == orders(some)
    assert orders(some)[-1][-1]


def test_steps_are_counted_up_to_an_end_within_repeated_steps(run):
    for steps in range(60, 77):
        assert run(Loop(steps=steps), steps).num_steps == steps


class Turns:
    """Two networks with alternating optimizers, as in a GAN."""

    def __init__(self, rounds=120, at=None, clears="before", detaches=True, critics=1):
        self.rounds, self.at, self.clears = rounds, at or {}, clears
        self.detaches, self.critics = detaches, critics

    def clear(self, place, network, optimizer, odd):
        if place not in self.clears or "no zero" in odd:
            return
        if "manually in place" in self.clears:
            for parameter in network.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        elif "manually" in self.clears:
            for parameter in network.parameters():
                parameter.grad = None
        elif "module" in self.clears:
            network.zero_grad()
        else:
            optimizer.zero_grad(set_to_none="in place" not in self.clears)

    def __call__(self):
        makes, judges = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        first = torch.optim.Adam(judges.parameters(), lr=1e-3)
        second = torch.optim.Adam(makes.parameters(), lr=1e-3)
        criterion = nn.BCEWithLogitsLoss()
        for turn in range(1, self.rounds + 1):
            odd, odd_second = self.at.get(turn, ("", ""))
            for _ in range(self.critics):
                self.clear("top", judges, first, odd)
                self.clear("top", makes, second, odd_second)
                made = makes(torch.randn(4, 3))
                made = made.detach() if self.detaches else made
                self.clear("before", judges, first, odd)
                criterion(judges(torch.randn(4, 4)), torch.ones(4, 1)).backward()
                criterion(judges(made), torch.zeros(4, 1)).backward()
                if "skipped" not in odd:
                    first.step()
                self.clear("after", judges, first, odd)
            self.clear("before", makes, second, odd_second)
            if "backward" not in odd_second:
                criterion(judges(makes(torch.randn(4, 3))), torch.ones(4, 1)).backward()
            if "clipped" in odd_second:
                nn.utils.clip_grad_norm_(makes.parameters(), 1.0)
            if "skipped" not in odd_second:
                second.step()
            if "twice" in odd_second:
                second.step()
            self.clear("after", makes, second, odd_second)


TURN_ODD = ("no zero", "skipped", "no backward", "clipped", "twice")


def test_nearly_all_steps_of_two_alternating_optimizers_are_not_recorded_fully(both):
    every, some = both(Turns())

    assert num_full_records(every) > 120
    assert num_full_records(some) < 100
    assert orders(every) == orders(some)
    assert losses(every) == losses(some)


def late_of(trace, step):
    """Return the optimizers of the fully recorded steps after a step."""
    return [
        trace.sequences[s.sequence].events[-1].object_id
        for s in trace.recent_steps
        if s.step > step
    ]


def test_both_alternating_optimizers_get_full_samples(run):
    late = late_of(run(Turns(rounds=400), 8), 400)

    assert 20 < len(late) < 80
    assert max(len(list(same)) for _, same in groupby(late)) <= 3


def test_recent_successors_of_a_pattern_outweigh_old_ones(run):
    def program():
        torch.manual_seed(0)
        nets = [nn.Linear(4, 4), nn.Linear(4, 4)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        for turn in range(800):
            for net, optimizer in list(zip(nets, optimizers, strict=True))[: 1 + (turn >= 600)]:
                optimizer.zero_grad()
                net(torch.randn(4, 4)).square().mean().backward()
                optimizer.step()

    assert len(late_of(run(program, 16), 800)) < 40  # of 200


def test_a_known_pattern_is_soon_predicted_after_the_first_step_of_an_epoch(run, monkeypatch):
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 64)

    def program():
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(40):
            for x in DataLoader(torch.randn(40, 4), batch_size=4):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    late = {s.step for s in run(program, 100).recent_steps if s.step > 200}

    assert {step % 10 for step in late} >= {1}
    assert len({step for step in late if step % 10 == 2}) < 5  # of 20


CLEARS = ("before", "top", "after", "never", "before module", "top module", "after in place",
          "top in place", "before manually", "top manually",
          "before manually in place")  # fmt: skip


@pytest.mark.parametrize("detaches", [True, False])
@pytest.mark.parametrize("clears", CLEARS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_every_way_of_clearing_gradients_of_two_optimizers_is_recorded(
    both, clears, detaches, seed
):
    chance = random.Random(seed)
    # Clearing without an event, or with one that names no optimizer, is only detected in fully
    # recorded steps; so are gradients that nothing clears and the other backward pass changes.
    is_silent = "manually" in clears or "module" in clears or clears == "never"
    odd = [o for o in TURN_ODD if not (is_silent and o in ("no zero", "no backward"))]
    at = {
        turn: (chance.choice(odd) * (chance.random() < 0.5), chance.choice(odd))
        for turn in range(1, 150)
        if chance.random() < 0.05
    }

    every, some = both(Turns(150, at, clears, detaches))

    assert orders(every) == orders(some)
    assert losses(every) == losses(some)


def test_gradients_changed_by_the_other_backward_pass_are_not_stale(both):
    at = {turn: ("", "no backward") for turn in range(30, 150, 7)}

    for trace in both(Turns(150, at, "never", detaches=False)):
        assert not [m for word in trace.sequences for m in word.events if "stale" in m.flags]


@pytest.mark.parametrize("critics", [2, 5])
def test_an_optimizer_with_several_steps_per_turn_is_recorded_as_with_full_recording(both, critics):
    every, some = both(Turns(120, critics=critics))

    assert len(late_of(some, 60 * (critics + 1))) < 85
    assert orders(every) == orders(some)
    assert losses(every) == losses(some)


def test_a_replaced_module_is_recorded_immediately(both):
    def program():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(100):
            if step == 70:
                model[1] = nn.Linear(4, 4)
            optimizer.zero_grad()
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()

    every, some = both(program)
    seen = [[m.step for m in trace.memberships if m.step > 60] for trace in (every, some)]

    assert seen[0][0] == seen[1][0] == 71
    assert {f.fault for f in judge(some)} == {f.fault for f in judge(every)} != set()


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_steps_of_an_optimizer_with_hooks_are_recorded_fully(run, kind):
    def program():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        getattr(optimizer, f"register_step_{kind}_hook")(lambda *_: None)
        for _ in range(50):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()

    assert num_full_records(run(program, 16)) == 50


def test_long_steps_are_all_recorded_fully(tmp_path):
    with traced(tmp_path / "out", TraceSettings(fast_step_s=0.0)):
        Loop(steps=90)()

    (folder,) = find_traces(tmp_path / "out")
    assert num_full_records(read_trace(folder)) == 90


def test_each_thread_repeats_its_own_pattern(both):
    def train(steps, seed):
        generator = torch.Generator().manual_seed(seed)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 4, generator=generator)).square().mean().backward()
            if step == 70:
                nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()

    def program():
        train(60, 0)
        thread = threading.Thread(target=train, args=(90, 1))
        thread.start()
        thread.join()
        train(80, 2)

    every, some = both(program)

    assert orders(every) == orders(some)
    assert some.num_steps == 230
    assert num_full_records(some) < num_full_records(every)


def test_the_profile_covers_the_fully_recorded_steps(run):
    found = profile_steps(run(Loop(steps=400), 16))

    assert found is not None
    assert sum(phase.share for phase in found.phases) == pytest.approx(1)
    assert {phase.phase for phase in found.phases} >= {"data", "forward", "backward", "optimizer"}
