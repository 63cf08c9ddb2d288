"""A training stops after any step and continues with the same bits."""

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
    loss_of,
    make_model,
    run,
    timeless,
    vector,
)
from tests.support import trained_sources
from tests.support.step_faults import TrainingForks
from tests.support.trained_sources import SignalAtStep

EXHAUSTIVE = pytest.mark.exhaustive
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # more processes than this machine has cores
)


def frozen(state):
    """Return the state with copies of its tensors, as a file would hold it."""
    parts = {
        part: {name: tensor.clone() for name, tensor in getattr(state, part).items()}
        for part in ("model", "best", "optimizer", "rng")
    }
    return dataclasses.replace(state, **parts)


def states_within(settings=SETTINGS, **options):
    """Return all states of a training that keeps one after every step, and its result."""
    states, model = [], make_model()
    with deterministic():
        history = list(
            run(
                model,
                settings,
                on_state=lambda state: states.append(frozen(state)),
                is_due=lambda: True,
                **options,
            )
        )
    return states, vector(model), timeless(history)


OPTIONS = {
    "fp32": {},
    "micro-batches": {"micro_batch_rows": 5},
    "fp16": {"precision": "fp16"},
    "sgd": {"optimizer": "sgd", "optimizer_arguments": {"momentum": 0.9}},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_resumed_after_any_step_it_ends_with_the_same_bits(case, tmp_path):
    settings = SETTINGS.model_copy(update={"max_epochs": 3, **OPTIONS[case]})
    states, expected, history = states_within(settings)

    # Seven steps and one chunk of validation: 6 states after steps, one before the result, and it.
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
        assert timeless(rest) == history[len(state.history) :], number


def test_keeping_states_changes_no_bit():
    _, kept, history = states_within()
    model = make_model()
    with deterministic():
        expected = list(run(model))

    assert torch.equal(kept, vector(model))
    assert history == timeless(expected)


def test_a_resumed_epoch_reads_only_its_remaining_batches():
    states, _, _ = states_within()
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


def test_seconds_of_an_epoch_include_those_before_the_interruption():
    ticks = iter(range(10_000))
    states, _, _ = states_within()
    progress = dataclasses.replace(states[2].progress, seconds=100.0)
    state = dataclasses.replace(states[2], progress=progress)
    result = next(run(make_model(), resume=state, clock=lambda: float(next(ticks))))

    assert result.seconds == 101.0


def test_a_step_that_is_not_finite_is_not_kept():
    kept = []

    def diverges(output, y):
        return loss_of(output, y) * (torch.inf if torch.equal(y, bad) else 1.0)

    bad = next(y for step, y in enumerate(targets_of_epoch_1()) if step == 2)
    with pytest.raises(TrainingFailed, match=r"got inf at epoch 1, step 3 of 7"):
        list(run(make_model(), loss=diverges, on_state=kept.append, is_due=lambda: True))
    assert [state.steps for state in kept] == [1, 2]


def targets_of_epoch_1():
    seen = []

    def spy(output, y):
        seen.append(y)
        return loss_of(output, y)

    next(run(make_model(), loss=spy))
    return seen


def test_a_training_stopped_in_validation_scores_the_rows_again():
    """All steps of the epoch are kept; user code that draws random numbers repeats them."""

    def noisy(output, y):
        return (output - y).square().mean(dim=1) * (1 + torch.rand(len(y)))

    settings, kept = SETTINGS.model_copy(update={"max_epochs": 2}), []
    whole, cut, resumed = make_model(), make_model(), make_model()
    with deterministic():
        expected = list(run(whole, settings, losses=noisy))
        calls = iter([False] * 6 + [True])  # after six steps and one chunk of validation rows
        with pytest.raises(InterruptedError):
            list(run(cut, settings, losses=noisy, on_state=stop_with(kept), is_due=calls.__next__))
        rest = list(run(resumed, settings, losses=noisy, resume=kept[0]))

    assert (len(kept[0].history), kept[0].progress.steps, kept[0].steps) == (0, 7, 7)
    assert timeless(rest) == timeless(expected)
    assert torch.equal(vector(resumed), vector(whole))


def stop_with(kept):
    def keep(state):
        kept.append(frozen(state))
        raise InterruptedError

    return keep


def test_several_ranks_do_not_resume_within_an_epoch():
    class Two(Ranks):
        shard = RankShard(rank=0, world_size=2)

    states, _, _ = states_within()
    with pytest.raises(ContractError, match=r"2 ranks can resume only after .* step 3 of epoch 1"):
        list(run(make_model(), resume=states[2], ranks=Two()))


def test_several_ranks_keep_no_state_within_an_epoch():
    class Two(Ranks):
        shard = RankShard(rank=0, world_size=2)

    kept = []
    list(run(make_model(), on_state=kept.append, is_due=lambda: True, ranks=Two()))

    assert [state.progress for state in kept] == [None] * 5


def test_a_state_with_more_steps_than_an_epoch_has_is_refused():
    states, _, _ = states_within()
    model = make_model()
    few = SETTINGS.model_copy(update={"batch_rows": 50})

    with pytest.raises(ContractError, match="at step 3 after 0 epochs, but these rows make 2"):
        list(run(model, few, resume=states[2]))


def test_a_checkpoint_within_an_epoch_is_newer_than_that_of_the_epoch_before(tmp_path):
    states, _, _ = states_within()
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


# Fold runs in processes that signals end.


def spec_of(kind: str, home, **settings) -> FoldRunSpec:
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


def position(spec) -> tuple[int, int]:
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
def test_killed_ten_times_within_epochs_it_ends_with_the_same_bits(kind, workers, forks, tmp_path):
    whole = spec_of(kind, tmp_path / "whole", max_epochs=8)
    cut = spec_of(kind, tmp_path / "cut", max_epochs=8, loader_workers=workers)
    expected = train_fold_run(whole, ignore)
    rng, positions = random.Random(f"{kind} {workers}"), []
    for _ in range(10):
        code = forks.train(cut, SignalAtStep(signal.SIGKILL, rng.randint(3, 16)))
        assert code == -signal.SIGKILL
        positions.append(position(cut))
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
def test_on_sigterm_the_step_is_finished_and_stored(workers, every_epochs, forks, tmp_path):
    """All processes of the group receive the signal, as when a service is stopped."""
    settings = {"loader_workers": workers, "checkpoint_every_epochs": every_epochs}
    whole, cut = (spec_of("Token", tmp_path / name, **settings) for name in ("whole", "cut"))
    expected = train_fold_run(whole, ignore)

    fault = SignalAtStep(signal.SIGTERM, 7, group=True)
    assert forks.train(cut, fault, every_step=False) == 143
    assert position(cut) == (0, 7)
    fault = SignalAtStep(signal.SIGTERM, 5)
    assert forks.train(cut, fault, handler="default", every_step=False) == -signal.SIGTERM
    assert position(cut) == (0, 12)
    received = []
    member = train_fold_run(cut, received.append)
    assert (received[0].epochs_done, received[0].steps_done) == (0, 12)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.slow
def test_a_stopped_pool_keeps_the_steps_of_its_running_epochs(specs):
    """Ctrl-C in the parent process; each epoch takes half a minute."""
    both = specs(seeds=(0, 1), pause_s=2.0, batch_rows=12)

    def stop(_event):
        time.sleep(3)  # the workers are in their first or second step
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="0 of 2 fold runs finished"):
        train_members(both, compute=ComputeSettings(workers=2), on_event=stop)
    kept = [path.name[:27] for spec in both for path in fold_run_folder(spec).glob("epoch-*")]
    assert set(kept) & {f"epoch-000000-step-00000000{step}" for step in (1, 2, 3)}


def test_the_first_line_of_the_log_keeps_its_time_within_the_first_epoch(tmp_path, monkeypatch):
    spec = spec_of("Token", tmp_path)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    monkeypatch.setattr(checkpoint_writer, "_FIRST_COST_S", 0.0)
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


def test_sigterm_after_the_training_is_handled_as_before():
    """Outside of the context, and when the code inside did not stop."""
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
        handlers = pool.submit(_handlers).result()

    assert handlers[0] == handlers[1]


def _handlers():
    outside = signal.getsignal(signal.SIGTERM)
    with delayed_termination():
        return outside, signal.getsignal(signal.SIGTERM)
