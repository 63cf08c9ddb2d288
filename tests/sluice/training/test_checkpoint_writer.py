"""REPRO-4: how often checkpoints are written; they take at most 2 % of the training time."""

import random

import pytest

from sluice.training import checkpoint_writer
from sluice.training.checkpoint_writer import CheckpointWriter
from sluice.training.fold_run import train_fold_run
from tests.sluice.training.test_checkpoint import SUBJECT, make_state
from tests.sluice.training.test_fold_run import bits, events, ignore, run_folder, stop_after


class ManualClock:
    """Manual clock: tests advance ``now`` themselves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Return a function that runs a writer on a manual clock with the given durations.

    It returns the epochs with a checkpoint, the time spent on checkpoints and the total time.
    """

    def run(epoch_s, cost_s, *, epochs=200, every=None, force=()):
        time, written = ManualClock(), []

        def save(_folder, saved, *, subject):
            assert subject == SUBJECT
            written.append(len(saved.history))
            time.now += cost_s()

        monkeypatch.setattr(checkpoint_writer, "save_checkpoint", save)
        writer = CheckpointWriter(tmp_path, subject=SUBJECT, every_epochs=every, clock=time)
        for epoch in range(1, epochs + 1):
            time.now += epoch_s()
            writer.write_if_due(make_state(epoch), force=epoch in force)
        return written, writer.spent_s, time.now

    return run


@pytest.mark.parametrize("epoch_s", [0.001, 0.05, 0.3, 2.0, 60.0])
@pytest.mark.parametrize("cost_s", [0.0005, 0.004, 0.02])
def test_checkpoints_take_at_most_two_percent_of_training(write, epoch_s, cost_s):
    written, spent_s, total_s = write(lambda: epoch_s, lambda: cost_s)

    assert spent_s <= 0.02 * (total_s - spent_s) + 1e-9
    # The interval is bounded too, so that a kill costs little work.
    longest = max(b - a for a, b in zip([0, *written], [*written, 200], strict=True))
    assert longest * epoch_s <= max(1.0, 50 * cost_s) + epoch_s + 1e-9


def test_expensive_checkpoint_delays_the_next_one(write):
    rng = random.Random(0)
    costs = [rng.choice((0.001, 0.01, 0.5)) for _ in range(2_000)]
    remaining_costs = iter(costs)
    written, spent_s, total_s = write(lambda: 0.1, lambda: next(remaining_costs), epochs=2_000)

    assert len(written) > 5
    assert spent_s - costs[len(written) - 1] <= 0.02 * total_s


def test_first_checkpoint_is_written_after_a_second(write):
    assert write(lambda: 0.3, lambda: 1e-9)[0] == [4, *range(5, 201)]


def test_every_epochs_is_followed_exactly(write):
    assert write(lambda: 9.0, lambda: 9.0, epochs=7, every=3)[0] == [3, 6]
    assert write(lambda: 1e-9, lambda: 9.0, epochs=3, every=1)[0] == [1, 2, 3]


def test_forced_checkpoint_is_written_and_counted_as_cost(write):
    written, spent_s, _ = write(lambda: 0.5, lambda: 0.1, epochs=12, force=(1,))

    assert written == [1, 11]
    assert spent_s == pytest.approx(0.2)


def test_fold_run_resumes_from_an_older_step_with_identical_bits(specs):
    """On the test's clock the first three epochs take 0.4 s each, everything else no time."""
    (whole,), (cut,) = (specs(name, checkpoint_every_epochs=None, max_epochs=6) for name in "ab")
    expected = train_fold_run(whole, ignore)
    time, stop = ManualClock(), stop_after(5)

    def listen(event):
        time.now += 0.4 if 1 <= event.epochs_done <= 3 else 0.0
        stop(event)

    def timer():
        time.now += 1e-4
        return time.now

    with pytest.raises(KeyboardInterrupt):
        train_fold_run(cut, listen, timer=timer)
    names = [path.name[:27] for path in run_folder(cut).glob("epoch-*")]
    received = []
    member = train_fold_run(cut, received.append)

    assert names == ["epoch-000003-step-000000001"]
    assert (received[0].epochs_done, received[0].steps_done) == (3, 1)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_short_training_writes_no_checkpoint(specs, monkeypatch):
    def refuse(*_args, **_options):
        raise AssertionError("a checkpoint was written")

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", refuse)
    (spec,) = specs(checkpoint_every_epochs=None)
    train_fold_run(spec, ignore, timer=ManualClock())
