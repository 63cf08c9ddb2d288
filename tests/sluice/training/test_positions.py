"""REPRO-4: a training interrupted after any step resumes with identical bits."""

import dataclasses
import itertools
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, Interrupted, TrainingFailed
from sluice.base.seeding import deterministic
from sluice.cluster.settings import ComputeSettings
from sluice.data.table import save_table
from sluice.eventlog.event_log import read_events
from sluice.models.settings import ModelSettings
from sluice.training import checkpoint_writer
from sluice.training.checkpoint import load_checkpoint, save_checkpoint
from sluice.training.fold_run import train_fold_run
from sluice.training.fold_run_spec import FoldRunSpec, fold_run_folder
from sluice.training.parallel import train_members
from sluice.training.ranks import Ranks, RankShard
from sluice.training.settings import TrainSettings
from sluice.training.termination import delayed_termination
from sluice.workloads.load import load_workload
from tests.sluice.training.test_fold_run import bits, events, ignore
from tests.sluice.training.test_loop import (
    SETTINGS,
    clone_state,
    drop_seconds,
    loss_of,
    make_model,
    run,
    vector,
)
from tests.support import trained_sources
from tests.support.step_faults import TrainingForks
from tests.support.trained_sources import SignalAtStep

EXHAUSTIVE = pytest.mark.exhaustive
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # more processes than this machine has cores
)


def record_states(settings=SETTINGS, **options):
    """Train and return the states after every step, the final weights and the history."""
    states, model = [], make_model()
    with deterministic():
        history = list(
            run(
                model,
                settings,
                on_state=lambda state: states.append(clone_state(state)),
                is_due=lambda: True,
                **options,
            )
        )
    return states, vector(model), drop_seconds(history)


OPTIONS = {
    "fp32": {},
    "micro-batches": {"micro_batch_rows": 5},
    "fp16": {"precision": "fp16"},
    "sgd": {"optimizer": "sgd", "optimizer_arguments": {"momentum": 0.9}},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_training_resumed_after_any_step_ends_with_identical_bits(case, tmp_path):
    settings = SETTINGS.model_copy(update={"max_epochs": 3, **OPTIONS[case]})
    states, expected, history = record_states(settings)

    # Per epoch: one state after each of seven steps (the last is before validation) and one at
    # the end of the epoch.
    assert [(len(s.history), s.progress and s.progress.steps, s.steps) for s in states] == [
        (epochs + (step is None), step, 7 * epochs + (step or 7))
        for epochs in range(3)
        for step in (1, 2, 3, 4, 5, 6, 7, None)
    ]
    for number, state in enumerate(states):
        save_checkpoint(tmp_path, state, subject={})
        restored = load_checkpoint(tmp_path, subject={}).state
        model = make_model(seed=99)
        with deterministic():
            rest = list(run(model, settings, resume=restored))
        assert torch.equal(vector(model), expected), number
        assert drop_seconds(rest) == history[len(state.history) :], number


def test_keeping_states_does_not_change_the_weights():
    _, kept, history = record_states()
    model = make_model()
    with deterministic():
        expected = list(run(model))

    assert torch.equal(kept, vector(model))
    assert history == drop_seconds(expected)


def test_resumed_epoch_reads_only_the_remaining_batches():
    states, _, _ = record_states()
    seen = []

    def spy(output, y):
        seen.append(y)
        return loss_of(output, y)

    after_step_5 = states[4]
    list(
        run(
            make_model(),
            SETTINGS.model_copy(update={"max_epochs": 1}),
            loss=spy,
            resume=after_step_5,
        )
    )

    assert [len(y) for y in seen] == [16, 4]


def test_epoch_seconds_include_the_time_before_the_interruption():
    ticks = iter(range(10_000))
    states, _, _ = record_states()
    progress = dataclasses.replace(states[2].progress, seconds=100.0)
    state = dataclasses.replace(states[2], progress=progress)
    result = next(run(make_model(), resume=state, clock=lambda: float(next(ticks))))

    assert result.seconds == 101.0


def test_state_with_a_non_finite_loss_is_not_kept():
    kept = []

    def diverges(output, y):
        return loss_of(output, y) * (torch.inf if torch.equal(y, bad) else 1.0)

    bad = next(y for step, y in enumerate(record_targets_of_epoch_1()) if step == 2)
    with pytest.raises(TrainingFailed, match=r"got inf at epoch 1, step 3 of 7"):
        list(run(make_model(), loss=diverges, on_state=kept.append, is_due=lambda: True))
    assert [state.steps for state in kept] == [1, 2]


def record_targets_of_epoch_1():
    seen = []

    def spy(output, y):
        seen.append(y)
        return loss_of(output, y)

    next(run(make_model(), loss=spy))
    return seen


def test_training_interrupted_in_validation_repeats_the_validation():
    """All steps of the epoch are kept, and user code draws the same random numbers again."""

    def noisy(output, y):
        return (output - y).square().mean(dim=1) * (1 + torch.rand(len(y)))

    settings, kept = SETTINGS.model_copy(update={"max_epochs": 2}), []
    whole, cut, resumed = make_model(), make_model(), make_model()
    with deterministic():
        expected = list(run(whole, settings, losses=noisy))
        calls = iter([False] * 6 + [True])  # after six steps and one chunk of validation rows
        with pytest.raises(InterruptedError):
            list(
                run(
                    cut,
                    settings,
                    losses=noisy,
                    on_state=make_interrupting_listener(kept),
                    is_due=calls.__next__,
                )
            )
        rest = list(run(resumed, settings, losses=noisy, resume=kept[0]))

    assert (len(kept[0].history), kept[0].progress.steps, kept[0].steps) == (0, 7, 7)
    assert drop_seconds(rest) == drop_seconds(expected)
    assert torch.equal(vector(resumed), vector(whole))


def make_interrupting_listener(kept):
    def keep(state):
        kept.append(clone_state(state))
        raise InterruptedError

    return keep


def test_resuming_several_ranks_within_an_epoch_is_rejected():
    class Two(Ranks):
        shard = RankShard(rank=0, world_size=2)

    states, _, _ = record_states()
    with pytest.raises(ContractError, match=r"2 ranks can resume only after .* step 3 of epoch 1"):
        list(run(make_model(), resume=states[2], ranks=Two()))


def test_several_ranks_keep_states_only_at_epoch_ends():
    class Two(Ranks):
        shard = RankShard(rank=0, world_size=2)

    kept = []
    list(run(make_model(), on_state=kept.append, is_due=lambda: True, ranks=Two()))

    assert [state.progress for state in kept] == [None] * 5


def test_state_with_more_steps_than_an_epoch_is_rejected():
    states, _, _ = record_states()
    model = make_model()
    few = SETTINGS.model_copy(update={"batch_rows": 50})

    with pytest.raises(ContractError, match="at step 3 after 0 epochs, but these rows make 2"):
        list(run(model, few, resume=states[2]))


def test_checkpoint_within_an_epoch_is_newer_than_the_previous_epoch_end(tmp_path):
    states, _, _ = record_states()
    names = [save_checkpoint(tmp_path, state, subject={}).name for state in states[4:11]]

    assert [re.sub(r"-[0-9a-f]{16}\.safetensors", "", name) for name in names] == [
        *(f"epoch-000000-step-00000000{step}" for step in (5, 6, 7)),
        "epoch-000001",
        *(f"epoch-000001-step-00000000{step}" for step in (1, 2, 3)),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[-2:])
    (tmp_path / names[-1]).write_bytes(b"damaged")
    restored = load_checkpoint(tmp_path, subject={})
    assert restored.damaged_paths == (tmp_path / names[-1],)
    assert (restored.state.steps, restored.state.progress.steps) == (9, 2)


# Fold runs in processes that receive signals.


def make_spec(kind: str, home, **settings) -> FoldRunSpec:
    path = f"tests.support.trained_sources:{kind}Workload"
    workload = load_workload(path, {}, where=path)
    frame = workload.compute_features(workload.load_rows())
    training = {"max_epochs": 2, "batch_rows": 12, "learning_rate": 1e-2, **settings}
    return FoldRunSpec(
        workload=path,
        workload_settings={},
        model=ModelSettings(),
        training=TrainSettings(**training),
        seed=3,
        fold=workload.plan_folds(frame)[0],
        table=save_table(frame, ArtifactStore(home / "artifacts")),
        artifacts=home / "artifacts",
        runs=home / "runs",
    )


@pytest.fixture(scope="module")
def forks():
    with TrainingForks() as forks:
        yield forks


def find_position(spec) -> tuple[int, int]:
    """Return the epochs and steps of the newest checkpoint."""
    newest = sorted(path.name for path in fold_run_folder(spec).glob("epoch-*"))[-1]
    found = re.match(r"epoch-(\d+)(?:-step-(\d+))?-", newest)
    return int(found[1]), int(found[2] or 0)


CASES = [
    pytest.param(
        kind, workers, marks=[] if (kind, workers) in {("Table", 0), ("Token", 4)} else EXHAUSTIVE
    )
    for kind in ("Table", "Token", "Image")
    for workers in (0, 4)
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_fold_run_killed_ten_times_within_epochs_ends_with_identical_bits(
    kind, workers, forks, tmp_path
):
    whole = make_spec(kind, tmp_path / "whole", max_epochs=8)
    cut = make_spec(kind, tmp_path / "cut", max_epochs=8, loader_workers=workers)
    expected = train_fold_run(whole, ignore)
    rng, positions = random.Random(f"{kind} {workers}"), []
    for _ in range(10):
        code = forks.train(cut, SignalAtStep(signal.SIGKILL, rng.randint(3, 16)))
        assert code == -signal.SIGKILL
        positions.append(find_position(cut))
    received = []
    member = train_fold_run(cut, received.append)

    assert positions == sorted(positions)
    assert sum(step > 0 for _, step in positions) >= 5  # within epochs
    assert (received[0].epochs_done, received[0].steps_done) == positions[-1]
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "every_epochs"),
    [
        (0, 1),
        (2, None),
        pytest.param(0, None, marks=EXHAUSTIVE),
        pytest.param(2, 1, marks=EXHAUSTIVE),
    ],
)
def test_sigterm_finishes_the_step_and_writes_a_checkpoint(workers, every_epochs, forks, tmp_path):
    """The first signal goes to all processes of the group, as when a service is stopped."""
    settings = {"loader_workers": workers, "checkpoint_every_epochs": every_epochs}
    whole, cut = (make_spec("Token", tmp_path / name, **settings) for name in ("whole", "cut"))
    expected = train_fold_run(whole, ignore)

    fault = SignalAtStep(signal.SIGTERM, 7, group=True)
    assert forks.train(cut, fault, every_step=False) == 143
    assert find_position(cut) == (0, 7)
    fault = SignalAtStep(signal.SIGTERM, 5)
    assert forks.train(cut, fault, handler="default", every_step=False) == -signal.SIGTERM
    assert find_position(cut) == (0, 12)
    received = []
    member = train_fold_run(cut, received.append)
    assert (received[0].epochs_done, received[0].steps_done) == (0, 12)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.slow
def test_interrupted_pool_keeps_the_steps_of_running_epochs(specs):
    """Ctrl-C in the parent process; each epoch takes half a minute."""
    both = specs(seeds=(0, 1), pause_s=2.0, batch_rows=12)

    def stop(_event):
        time.sleep(3)  # the workers are in their first or second step
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="0 of 2 fold runs finished"):
        train_members(both, compute=ComputeSettings(workers=2), on_event=stop)
    kept = [path.name[:27] for spec in both for path in fold_run_folder(spec).glob("epoch-*")]
    assert set(kept) & {f"epoch-000000-step-00000000{step}" for step in (1, 2, 3)}


def test_first_log_line_keeps_its_timestamp_when_resumed_within_epoch_1(tmp_path, monkeypatch):
    spec = make_spec("Token", tmp_path)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    monkeypatch.setattr(checkpoint_writer, "_FIRST_DURATION_S", 0.0)
    monkeypatch.setattr(checkpoint_writer, "_MIN_INTERVAL_RATIO", 0.0)
    steps = itertools.count(1)

    def interrupt():
        if next(steps) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(trained_sources, "FAULT", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_fold_run(spec, ignore, clock=lambda: early)
    train_fold_run(spec, ignore, clock=lambda: late)
    lines = read_events(fold_run_folder(spec) / "events.ndjson").events

    assert [line["timestamp"] for line in lines] == [early.isoformat()] + [late.isoformat()] * 3


def test_sigterm_is_passed_to_the_previous_handler_after_training():
    """The previous handler runs at the end of the context, on request, and outside of it."""
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append("handled"))
    try:
        with delayed_termination() as termination:
            signal.raise_signal(signal.SIGTERM)
            assert (termination.is_requested, received) == (True, [])
        assert received == ["handled"]
        with delayed_termination() as termination:
            signal.raise_signal(signal.SIGTERM)
            termination.end_if_requested()
            assert (termination.is_requested, received) == (False, ["handled"] * 2)
        assert received == ["handled"] * 2
        signal.raise_signal(signal.SIGTERM)
        assert received == ["handled"] * 3
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_in_another_thread_is_not_delayed():
    with ThreadPoolExecutor(1) as pool:
        handlers = pool.submit(_get_handlers).result()

    assert handlers[0] == handlers[1]


def _get_handlers():
    outside = signal.getsignal(signal.SIGTERM)
    with delayed_termination():
        return outside, signal.getsignal(signal.SIGTERM)
