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
def early_prediction(monkeypatch):
    """Predict a pattern after a few repeats instead of hundreds."""
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS", 8)
    monkeypatch.setattr(step_patterns, "_MIN_REPEATS_IF_PREDICTED", 3)


@pytest.fixture
def run(tmp_path):
    def run_program(program, full_sample_every, **options):
        folder = tmp_path / f"every-{full_sample_every}"
        settings = TraceSettings(full_sample_every=full_sample_every, fast_step_s=10.0, **options)
        try:
            with traced(folder, settings):
                program()
        except ZeroDivisionError:
            pass
        return read_trace(find_traces(folder)[0])

    return run_program


@pytest.fixture
def run_twice(run):
    """Return two traces of a program: one records every step fully, the other one step in 16."""

    def run_with_both_settings(program, **options):
        gc.collect()  # optimizers of other tests that still exist also get an index
        torch.manual_seed(0)
        full = run(program, 1, **options)
        gc.collect()
        torch.manual_seed(0)
        return full, run(program, 16, **options)

    return run_with_both_settings


def sequence_records(trace):
    """Return the events, the range of steps and the count of every sequence."""
    return [
        (
            [
                (m.kind, m.object_id, m.related_id, m.flags, m.repeat_length)
                for m in sequence.events
            ],
            sequence.first_step,
            sequence.last_step,
            sequence.count,
            sequence.is_open,
        )
        for sequence in trace.sequences
    ]


def num_full_records(trace):
    """Return the number of fully recorded recent steps."""
    return len(trace.recent_steps)


def losses(trace):
    return {scalars.step: scalars.losses for scalars in trace.scalars}


class DeviatingTraining:
    """Trains a network; some steps deviate from the usual pattern."""

    def __init__(self, steps=200, deviation_at=None, deviation_every=None, clears="before"):
        self.steps, self.clears = steps, clears
        self.deviation_at, self.deviation_every = deviation_at or {}, deviation_every or {}

    def clear(self, position, optimizer, deviations):
        """Clear gradients in the configured way, if this is the configured position."""
        is_in_place = self.clears.endswith("in place") != ("in place" in deviations)
        if position != ("after" if self.clears == "after" else "before") or "no zero" in deviations:
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
        validation_loader = DataLoader(TensorDataset(x[:8], y[:8]), batch_size=4)
        step = 0
        while step < self.steps:
            for rows, labels in loader:
                step += 1
                deviations = {
                    self.deviation_at.get(step),
                    *(n for n, k in self.deviation_every.items() if step % k == 0),
                }
                if step > self.steps:
                    return
                if "raises" in deviations:
                    raise ZeroDivisionError
                if "bad row" in deviations:
                    rows = rows.clone()
                    rows[1, 2] = float("nan")
                self.clear("before", optimizer, deviations)
                if "twice" in deviations:
                    criterion(model(rows), labels).backward()
                loss = criterion(model(rows), labels)
                if "no backward" not in deviations:
                    loss.backward()
                if "no clip" not in deviations:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if "zero late" in deviations:
                    optimizer.zero_grad()
                if "added group" in deviations:
                    added = nn.Linear(2, 2)
                    optimizer.add_param_group({"params": added.parameters()})
                optimizer.step(*[lambda: 0.0] * ("closure" in deviations))
                self.clear("after", optimizer, deviations)
                if "no schedule" not in deviations:
                    scheduler.step()
                if "evaluates" in deviations:
                    model.eval()
                    with torch.no_grad():
                        for validation_rows, targets in validation_loader:
                            criterion(model(validation_rows), targets)
                    model.train()
                if "evaluates in training mode" in deviations:
                    with torch.no_grad():
                        criterion(model(x), y)
                if "another network" in deviations:
                    network = nn.Linear(6, 3)
                    criterion(network(rows), labels).backward()


DEVIATIONS = (
    "no zero", "in place", "twice", "no backward", "no clip", "zero late", "added group",
    "no schedule", "evaluates", "evaluates in training mode", "another network", "closure",
)  # fmt: skip


def test_nearly_all_repeated_steps_are_not_recorded_fully(run_twice):
    full, fast = run_twice(DeviatingTraining(steps=120))

    assert num_full_records(full) == 120
    assert num_full_records(fast) < 60
    assert sequence_records(full) == sequence_records(fast)


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_a_single_deviating_step_is_recorded_as_with_full_recording(run_twice, deviation):
    full, fast = run_twice(DeviatingTraining(deviation_at={105: deviation}))

    assert sequence_records(full) == sequence_records(fast)
    assert fast.num_steps == 200


@pytest.mark.parametrize("deviation", DEVIATIONS)
@pytest.mark.parametrize("period", [pytest.param(7, marks=pytest.mark.exhaustive), 33])
def test_periodic_deviating_steps_are_recorded_as_with_full_recording(run_twice, deviation, period):
    full, fast = run_twice(DeviatingTraining(deviation_every={deviation: period}))

    assert sequence_records(full) == sequence_records(fast)


def test_gradients_that_are_not_cleared_are_recorded_at_any_distance_from_a_full_sample(run_twice):
    full, fast = run_twice(
        DeviatingTraining(steps=220, deviation_at=dict.fromkeys(range(60, 220, 17), "no zero"))
    )

    assert sequence_records(full) == sequence_records(fast)
    assert any(
        "carried" in event[3] for sequence in sequence_records(fast) for event in sequence[0]
    )


CLEARING_CASES = [
    (clears, deviation)
    for clears in ("in place", "after", "manually", "manually in place", "never")
    for deviation in DEVIATIONS
    # Clearing without an event is only detected in fully recorded steps.
    if not (clears.startswith("manually") and deviation in ("no zero", "no backward"))
]


@pytest.mark.parametrize(
    ("clears", "deviation"),
    [
        pytest.param(*case, marks=[pytest.mark.exhaustive] if number % 5 else [])
        for number, case in enumerate(CLEARING_CASES)
    ],
)
def test_every_way_of_clearing_gradients_is_recorded_as_with_full_recording(
    run_twice, clears, deviation
):
    full, fast = run_twice(
        DeviatingTraining(steps=110, deviation_every={deviation: 23}, clears=clears)
    )

    assert sequence_records(full) == sequence_records(fast)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [*range(5), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(5, 25))],
)
def test_mixed_ways_of_clearing_gradients_are_recorded_as_with_full_recording(run_twice, seed):
    rng = random.Random(seed)
    deviation_at = {
        s: rng.choice(DEVIATIONS) for s in range(1, 300) if rng.random() < rng.choice((0.02, 0.2))
    }

    full, fast = run_twice(DeviatingTraining(steps=300, deviation_at=deviation_at))

    assert sequence_records(full) == sequence_records(fast)
    assert losses(full) == losses(fast)


def test_every_loss_is_recorded(run_twice):
    full, fast = run_twice(DeviatingTraining(steps=150))

    assert len(losses(full)) == 150
    assert losses(full) == losses(fast)


def test_a_nonfinite_loss_is_recorded_at_its_step_with_its_input(run_twice):
    full, fast = run_twice(DeviatingTraining(deviation_at={101: "bad row"}))

    for trace in (full, fast):
        (fact,) = [bad for bad in trace.nonfinite_tensors if bad.what == "input"]
        assert (fact.step, fact.columns, fact.rows) == (100, (2,), (1,))
    faults = [{(f.fault, f.step) for f in judge(t)} for t in (full, fast)]
    assert faults[0] == faults[1]
    assert faults[0]


def test_a_nonfinite_target_is_recorded_at_its_step(run_twice):
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

    for trace in run_twice(program):
        assert ("non-finite input", 91) in {(f.fault, f.step) for f in judge(trace)}


def test_events_before_an_exception_are_recorded(run_twice):
    full, fast = run_twice(DeviatingTraining(deviation_at={110: "raises"}))

    assert sequence_records(full) == sequence_records(fast)
    assert sequence_records(fast)[-1][-1]


def test_steps_are_counted_up_to_an_end_within_repeated_steps(run):
    for steps in range(60, 77):
        assert run(DeviatingTraining(steps=steps), steps).num_steps == steps


class AlternatingTraining:
    """Trains two networks with alternating optimizers, as in a GAN."""

    def __init__(
        self,
        rounds=120,
        deviation_at=None,
        clears="before",
        detaches=True,
        num_discriminator_steps=1,
    ):
        self.rounds, self.deviation_at, self.clears = rounds, deviation_at or {}, clears
        self.detaches, self.num_discriminator_steps = detaches, num_discriminator_steps

    def clear(self, position, network, optimizer, deviation):
        if position not in self.clears or "no zero" in deviation:
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
        generator = nn.Linear(3, 4)
        discriminator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
        generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
        criterion = nn.BCEWithLogitsLoss()
        for round_number in range(1, self.rounds + 1):
            discriminator_deviation, generator_deviation = self.deviation_at.get(
                round_number, ("", "")
            )
            for _ in range(self.num_discriminator_steps):
                self.clear("top", discriminator, discriminator_optimizer, discriminator_deviation)
                self.clear("top", generator, generator_optimizer, generator_deviation)
                samples = generator(torch.randn(4, 3))
                samples = samples.detach() if self.detaches else samples
                self.clear(
                    "before", discriminator, discriminator_optimizer, discriminator_deviation
                )
                criterion(discriminator(torch.randn(4, 4)), torch.ones(4, 1)).backward()
                criterion(discriminator(samples), torch.zeros(4, 1)).backward()
                if "skipped" not in discriminator_deviation:
                    discriminator_optimizer.step()
                self.clear("after", discriminator, discriminator_optimizer, discriminator_deviation)
            self.clear("before", generator, generator_optimizer, generator_deviation)
            if "backward" not in generator_deviation:
                criterion(discriminator(generator(torch.randn(4, 3))), torch.ones(4, 1)).backward()
            if "clipped" in generator_deviation:
                nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
            if "skipped" not in generator_deviation:
                generator_optimizer.step()
            if "twice" in generator_deviation:
                generator_optimizer.step()
            self.clear("after", generator, generator_optimizer, generator_deviation)


TURN_DEVIATIONS = ("no zero", "skipped", "no backward", "clipped", "twice")


def test_nearly_all_steps_of_two_alternating_optimizers_are_not_recorded_fully(run_twice):
    full, fast = run_twice(AlternatingTraining())

    assert num_full_records(full) > 120
    assert num_full_records(fast) < 100
    assert sequence_records(full) == sequence_records(fast)
    assert losses(full) == losses(fast)


def sampled_optimizers(trace, step):
    """Return the optimizer of each fully recorded step after the given step."""
    return [
        trace.sequences[s.sequence].events[-1].object_id
        for s in trace.recent_steps
        if s.step > step
    ]


def test_both_alternating_optimizers_get_full_samples(run):
    late_samples = sampled_optimizers(run(AlternatingTraining(rounds=400), 8), 400)

    assert 20 < len(late_samples) < 80
    assert max(len(list(group)) for _, group in groupby(late_samples)) <= 3


def test_recent_successors_of_a_pattern_outweigh_old_ones(run):
    def program():
        torch.manual_seed(0)
        nets = [nn.Linear(4, 4), nn.Linear(4, 4)]
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        for round_number in range(800):
            for net, optimizer in list(zip(nets, optimizers, strict=True))[
                : 1 + (round_number >= 600)
            ]:
                optimizer.zero_grad()
                net(torch.randn(4, 4)).square().mean().backward()
                optimizer.step()

    assert len(sampled_optimizers(run(program, 16), 800)) < 40  # of 200


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

    late_samples = {s.step for s in run(program, 100).recent_steps if s.step > 200}

    assert {step % 10 for step in late_samples} >= {1}
    assert len({step for step in late_samples if step % 10 == 2}) < 5  # of 20


CLEARING_MODES = (
    "before", "top", "after", "never", "before module", "top module", "after in place",
    "top in place", "before manually", "top manually", "before manually in place",
)  # fmt: skip


@pytest.mark.parametrize("detaches", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("clears", CLEARING_MODES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_every_way_of_clearing_gradients_of_two_optimizers_is_recorded(
    run_twice, clears, detaches, seed
):
    rng = random.Random(seed)
    # Clearing without an event, or with one that names no optimizer, is only detected in fully
    # recorded steps; so are gradients that nothing clears and the other backward pass changes.
    is_silent = "manually" in clears or "module" in clears or clears == "never"
    deviations = [o for o in TURN_DEVIATIONS if not (is_silent and o in ("no zero", "no backward"))]
    deviation_at = {
        round_number: (rng.choice(deviations) * (rng.random() < 0.5), rng.choice(deviations))
        for round_number in range(1, 150)
        if rng.random() < 0.05
    }

    full, fast = run_twice(AlternatingTraining(150, deviation_at, clears, detaches))

    assert sequence_records(full) == sequence_records(fast)
    assert losses(full) == losses(fast)


def test_gradients_changed_by_the_other_backward_pass_are_not_stale(run_twice):
    deviation_at = {round_number: ("", "no backward") for round_number in range(30, 150, 7)}

    for trace in run_twice(AlternatingTraining(150, deviation_at, "never", detaches=False)):
        assert not [
            m for sequence in trace.sequences for m in sequence.events if "stale" in m.flags
        ]


@pytest.mark.parametrize("num_discriminator_steps", [2, 5])
def test_an_optimizer_with_several_steps_per_turn_is_recorded_as_with_full_recording(
    run_twice, num_discriminator_steps
):
    full, fast = run_twice(
        AlternatingTraining(120, num_discriminator_steps=num_discriminator_steps)
    )

    assert len(sampled_optimizers(fast, 60 * (num_discriminator_steps + 1))) < 85
    assert sequence_records(full) == sequence_records(fast)
    assert losses(full) == losses(fast)


def test_a_replaced_module_is_recorded_immediately(run_twice):
    def program():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(100):
            if step == 70:
                model[1] = nn.Linear(4, 4)
            optimizer.zero_grad()
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()

    full, fast = run_twice(program)
    membership_steps = [
        [m.step for m in trace.memberships if m.step > 60] for trace in (full, fast)
    ]

    assert membership_steps[0][0] == membership_steps[1][0] == 71
    assert {f.fault for f in judge(fast)} == {f.fault for f in judge(full)} != set()


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


def test_steps_above_the_fast_step_time_are_recorded_fully(tmp_path):
    with traced(tmp_path / "out", TraceSettings(fast_step_s=0.0)):
        DeviatingTraining(steps=90)()

    (folder,) = find_traces(tmp_path / "out")
    assert num_full_records(read_trace(folder)) == 90


def test_patterns_of_threads_are_predicted_separately(run_twice):
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

    full, fast = run_twice(program)

    assert sequence_records(full) == sequence_records(fast)
    assert fast.num_steps == 230
    assert num_full_records(fast) < num_full_records(full)


def test_a_step_profile_is_computed_from_the_fully_recorded_steps(run):
    found = profile_steps(run(DeviatingTraining(steps=400), 16))

    assert found is not None
    assert sum(phase.share for phase in found.phases) == pytest.approx(1)
    assert {phase.phase for phase in found.phases} >= {"data", "forward", "backward", "optimizer"}
