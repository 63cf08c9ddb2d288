"""REPRO-4, LOG-1, TRACE-1: fold runs are resumable with identical bits, logged and traced."""

import dataclasses
import json
import pickle
import random
import resource
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import SettingsError, StorageError
from sluice.data.table import load_table
from sluice.eventlog.event_log import read_events, validate_log
from sluice.trace.trace_reader import find_traces, read_trace
from sluice.training.fold_run import find_finished_member, train_fold_run
from sluice.training.loop import predict
from sluice.training.weights import load_member
from tests.support.synthetic import SineWorkload


def ignore(event):
    pass


def events(spec, member):
    """Return the fold run's events without their times."""
    text = ArtifactStore(spec.artifacts).get(member.event_log).decode()
    return [
        {k: v for k, v in json.loads(line).items() if k not in ("timestamp", "seconds")}
        for line in text.splitlines()
    ]


def run_folder(spec) -> Path:
    (folder,) = spec.runs.iterdir()
    return folder


def stop_after(epochs: int):
    """Return a listener that ends the fold run after ``epochs`` epochs as Ctrl-C would."""

    def listen(event):
        if event.kind == "epoch" and event.epochs_done == epochs:
            raise KeyboardInterrupt

    return listen


def interrupt_after(spec, epochs: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_fold_run(spec, stop_after(epochs))


def bits(member):
    return member.weights, member.test_metrics, member.best_epoch, member.epochs_run


def test_member_describes_the_trained_model(specs):
    (spec,) = specs()
    received = []
    member = train_fold_run(spec, received.append)

    assert [e.kind for e in received] == ["started", *["epoch"] * 4, "finished"]
    assert (member.seed, member.fold_id, member.epochs_run) == (0, 0, 4)
    best = received[member.best_epoch].result
    assert (member.train_loss, member.val_loss) == (best.train_loss, best.val_loss)
    assert member.val_loss == min(e.result.val_loss for e in received if e.result)
    # Row 0 of the frame has label 1: the first raw row has no slope.
    assert member.trained_through == str(spec.fold.val.stop)
    assert member.seconds == sum(e.result.seconds for e in received if e.result)


def test_stored_weights_reproduce_the_reported_metrics(specs):
    """The test metric is computed again from the artifact alone."""
    (spec,) = specs(max_epochs=12, learning_rate=0.3)
    member = train_fold_run(spec, ignore)
    assert member.best_epoch < member.epochs_run
    store, workload = ArtifactStore(spec.artifacts), SineWorkload()
    model = load_member(member, workload, spec.model, store)
    test = workload.examples(load_table(spec.table, store), spec.fold.test)
    val = workload.examples(load_table(spec.table, store), spec.fold.val)

    loss = float((predict(model, test.x) - test.y).square().mean())
    assert member.test_metrics == pytest.approx({"loss": loss, "rmse": loss**0.5})
    val_loss = float((predict(model, val.x) - val.y).square().mean())
    assert member.val_loss == pytest.approx(val_loss)


def test_event_log_is_valid_and_complete(specs):
    """LOG-1: fold_start, an epoch_complete per epoch, fold_complete with test metrics."""
    (spec,) = specs()
    train_fold_run(spec, ignore)
    path = run_folder(spec) / "events.ndjson"
    report = validate_log(path, test_metrics=("test_loss", "test_rmse"), headline="")
    first = read_events(path).events[0]

    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ["events.ndjson", "lock", "result.json", "traces"]
    assert report.counts == {"fold_start": 1, "epoch_complete": 4, "fold_complete": 1}
    assert (first["train_size"], first["seed"]) == (len(spec.fold.train) - 7, 0)


def test_finished_fold_run_is_reused(specs):
    (spec,) = specs()
    member = train_fold_run(spec, ignore)
    received = []

    assert train_fold_run(spec, received.append) == member
    assert [e.kind for e in received] == ["reused"]
    assert find_finished_member(spec) == member


def test_damaged_weights_are_trained_again_to_the_same_bits(specs):
    (spec,) = specs()
    member = train_fold_run(spec, ignore)
    ArtifactStore(spec.artifacts).path(member.weights).write_bytes(b"damaged")

    assert find_finished_member(spec) is None
    assert bits(train_fold_run(spec, ignore)) == bits(member)
    assert find_finished_member(spec) is not None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": "x", "member": {}}'])
def test_invalid_result_file_is_not_reused(specs, content):
    (spec,) = specs(max_epochs=1)
    train_fold_run(spec, ignore)
    (run_folder(spec) / "result.json").write_text(content)

    assert find_finished_member(spec) is None


def test_weights_depend_only_on_the_seed(specs):
    (one,), (again,), (other,) = specs("a"), specs("b"), specs("c", seeds=(1,))
    torch.manual_seed(1)
    first = train_fold_run(one, ignore)
    torch.manual_seed(2)
    second = train_fold_run(again, ignore)

    assert bits(first) == bits(second)
    assert events(one, first) == events(again, second)
    assert train_fold_run(other, ignore).weights != first.weights


def test_fold_run_uses_one_thread_and_its_own_generators(specs):
    """Random numbers that user code draws are the same in every process."""
    drawn = []

    def listen(event):
        if event.kind == "started":
            drawn.append((float(torch.rand(1)), random.random(), torch.get_num_threads()))

    for number, name in enumerate("ab"):
        torch.manual_seed(number)
        train_fold_run(specs(name, max_epochs=1)[0], listen)

    assert drawn[0] == drawn[1]
    assert drawn[0][2] == 1


@pytest.mark.parametrize(
    "change",
    [{"seeds": (1,)}, {"hidden": 7}, {"learning_rate": 2e-2}, {"noise": 0.06}, {"seq_len": 9}],
)
def test_settings_that_determine_the_weights_change_the_key(specs, change):
    (spec,), (other,) = specs(max_epochs=1), specs(max_epochs=1, **change)
    train_fold_run(spec, ignore)

    assert find_finished_member(spec) is not None
    assert find_finished_member(other) is None


def test_checkpoint_interval_does_not_change_the_key(specs):
    (spec,), (other,) = specs(max_epochs=1), specs(max_epochs=1, checkpoint_every_epochs=3)

    assert train_fold_run(spec, ignore) == find_finished_member(other)


@pytest.mark.parametrize(
    ("every", "stopped_after"),
    [
        (1, 1),
        (2, 3),
        (3, 4),
        *(
            pytest.param(*more, marks=pytest.mark.exhaustive)
            for more in ((1, 3), (1, 4), (2, 1), (2, 4), (3, 1), (3, 3))
        ),
    ],
)
def test_interrupted_fold_run_resumes_with_identical_bits_and_log(specs, every, stopped_after):
    (whole,), (cut,) = (specs(name, checkpoint_every_epochs=every) for name in "ab")
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, stopped_after)
    received = []
    member = train_fold_run(cut, received.append)

    assert received[0].epochs_done == stopped_after // every * every
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_damaged_checkpoint_costs_an_epoch_but_changes_no_bit(specs):
    (whole,), (cut,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, 3)
    newest = max(run_folder(cut).glob("epoch-*"))
    newest.write_bytes(newest.read_bytes()[:-20])
    received = []
    member = train_fold_run(cut, received.append)

    assert (received[0].epochs_done, received[0].num_damaged_checkpoints) == (2, 1)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_log_lines_covered_by_the_checkpoint_keep_their_timestamps(specs):
    (cut,) = specs(checkpoint_every_epochs=2)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(KeyboardInterrupt):
        train_fold_run(cut, stop_after(3), clock=lambda: early)
    train_fold_run(cut, ignore, clock=lambda: late)
    lines = read_events(run_folder(cut) / "events.ndjson").events

    assert [line["timestamp"] for line in lines] == [early.isoformat()] * 3 + [late.isoformat()] * 3


@pytest.mark.parametrize(
    "log",
    [
        *(pytest.param(text, marks=pytest.mark.exhaustive) for text in ("", "not json\n")),
        '{"event": "fold_start"}\n{"half": ',
    ],
)
def test_damaged_log_is_rewritten_from_the_checkpoint(specs, log):
    (whole,), (cut,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, 2)
    (run_folder(cut) / "events.ndjson").write_text(log)
    member = train_fold_run(cut, ignore)

    assert events(cut, member) == events(whole, expected)


def test_full_disk_during_a_checkpoint_is_reported_and_the_run_resumes(specs):
    """One error, no partial file, and the next run resumes with identical bits."""
    (whole,), (cut,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(event):
        if event.kind == "epoch" and event.epochs_done == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    try:
        with pytest.raises(StorageError, match=r"No room left to write .*epoch-000003"):
            train_fold_run(cut, fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [path for path in run_folder(cut).iterdir() if path.name.startswith(".")]
    received = []
    member = train_fold_run(cut, received.append)

    assert received[0].epochs_done == 2
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"workload": "no_such_module_here:Sine"}, "no_such_module_here"),
        ({"workload": "tests.support.synthetic:SineSettings"}, "must be a class that inherits"),
        ({"workload_settings": {"seq_length": 3}}, "Did you mean 'seq_len'"),
    ],
)
def test_workload_that_cannot_be_built_is_rejected(specs, changes, cause):
    (spec,) = specs()

    with pytest.raises(SettingsError, match=cause):
        train_fold_run(dataclasses.replace(spec, **changes), ignore)


TRAIN_SCRIPT = """
    import pickle, sys
    from sluice.training.fold_run import train_fold_run
    train_fold_run(pickle.load(sys.stdin.buffer), lambda event: print(event.kind, flush=True))
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_fold_run_killed_within_an_epoch_resumes_with_identical_bits(specs, tmp_path):
    """REPRO-4: SIGKILL runs no handler. Another process resumes the fold run."""
    marker = tmp_path / "died"
    # 10 batches an epoch: the 25th call is in the middle of epoch 3.
    options = {"kill_at_loss": 25, "only_first_time": str(marker), "batch_rows": 12}
    (cut,) = specs("cut", num_rows=320, max_epochs=5, **options)
    script = [sys.executable, "-c", textwrap.dedent(TRAIN_SCRIPT)]
    root = Path(__file__).parents[3]
    killed = subprocess.run(script, input=pickle.dumps(cut), capture_output=True, cwd=root)
    assert killed.returncode == -9, killed.stderr.decode()
    assert marker.exists()
    resumed_from = len(list(run_folder(cut).glob("epoch-*")))
    received = []
    member = train_fold_run(cut, received.append)
    (whole,) = specs("whole", num_rows=320, max_epochs=5, **options)
    expected = train_fold_run(whole, ignore)

    assert 0 < received[0].epochs_done < 5
    assert resumed_from == min(2, received[0].epochs_done)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_tracing_does_not_change_the_weights_of_a_fold_run(specs):
    """TRACE-1: the trainer traces by default."""
    (spec,) = specs()
    traced = train_fold_run(spec, ignore)
    plain = dataclasses.replace(
        spec,
        training=spec.training.model_copy(update={"trace": False}),
        runs=spec.runs.with_name("others"),
    )
    untraced = train_fold_run(plain, ignore)

    assert (untraced.weights, untraced.replay) == (traced.weights, "")
    assert traced.diagnoses == ()
    page = ArtifactStore(spec.artifacts).get(traced.replay).decode()
    assert "no problem found" in page
    (folder,) = find_traces(run_folder(spec) / "traces")
    assert read_trace(folder).num_steps > traced.epochs_run
