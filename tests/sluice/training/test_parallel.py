"""Fold runs in worker processes: same bits, clear errors, no process or file is left."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sluice.base.errors import Interrupted, SettingsError, TrainingFailed
from sluice.cluster.settings import ComputeSettings
from sluice.training import parallel
from sluice.training.parallel import train_members

ROOT = Path(__file__).parents[3]
ONE = ComputeSettings(workers=1)
TWO = ComputeSettings(workers=2, cpus_per_worker=0.5)
"""Two processes even on a machine with one core."""


def ignore(event):
    pass


def bits(members):
    return [(m.seed, m.fold_id, m.weights, m.test_metrics, m.best_epoch) for m in members]


def test_members_are_sorted_and_large_fold_runs_start_first(specs):
    run_specs = specs(seeds=(1, 0), folds=2, max_epochs=1)
    received = []
    members, reused = train_members(run_specs[::-1], compute=ONE, on_event=received.append)

    assert [(m.seed, m.fold_id) for m in members] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [e.fold_id for e in received if e.kind == "started"] == [1, 1, 0, 0]
    assert reused == 0


def test_finished_fold_runs_are_reused_and_reported(specs, monkeypatch):
    run_specs = specs(folds=2, max_epochs=1)
    first, _ = train_members(run_specs[:1], compute=ONE, on_event=ignore)
    received = []
    members, reused = train_members(run_specs, compute=ONE, on_event=received.append)

    assert (members[0], reused) == (first[0], 1)
    assert [e.kind for e in received] == ["reused", "started", "epoch", "finished"]
    # Nothing left to do: no process is started.
    monkeypatch.setattr(parallel, "open_process_pool", None)
    assert train_members(run_specs, compute=TWO, on_event=ignore) == (members, 2)


def test_changed_setting_restarts_training_and_reports_the_change(specs):
    """Restoring the original setting resumes the first training."""
    (run_spec,) = specs(max_epochs=4)
    stopping = iter(range(3))

    def stop(event):
        if event.kind == "epoch" and next(stopping) == 1:
            raise Interrupted("stopped", fix="")

    with pytest.raises(Interrupted):
        train_members([run_spec], compute=ONE, on_event=stop)
    received, again = [], []
    other = dataclasses.replace(
        run_spec,
        training=run_spec.training.model_copy(update={"clip_norm": 1.0, "learning_rate": 0.02}),
    )
    train_members([other], compute=ONE, on_event=received.append)
    train_members([run_spec], compute=ONE, on_event=again.append)

    assert received[0].kind == "replaces"
    assert received[0].reason == (
        "training.clip_norm was 5.0, now 1.0; training.learning_rate was 0.01, now 0.02"
    )
    assert (received[1].kind, received[1].epochs_done) == ("started", 0)
    assert (again[0].kind, again[0].epochs_done) == ("started", 2)


def test_single_remaining_fold_run_also_runs_in_a_worker_process(specs, monkeypatch):
    """Workers share one hash seed. In this process sets could have another order."""

    class OpenedError(Exception):
        pass

    def open_pool(*_, **__):
        raise OpenedError

    monkeypatch.setattr("sluice.training.parallel._open_pool", open_pool)
    with pytest.raises(OpenedError):
        train_members(specs(max_epochs=1), compute=TWO, on_event=ignore)


def test_fold_runs_on_several_ranks_start_ray_once(specs, monkeypatch):
    """Starting Ray takes seconds. tests/sluice/cluster tests the training on Ray."""
    members, _ = train_members(specs("alone", folds=2, max_epochs=1), compute=ONE, on_event=ignore)
    calls, fitted = [], iter(reversed(members))

    @contextlib.contextmanager
    def join(compute):
        calls.append(f"join {compute.address}")
        yield
        calls.append("leave")

    def fit(_spec, _on_event, *, compute, clock):  # noqa: ARG001
        calls.append(f"fit with {compute.ranks_per_training} at {compute.address}")
        return next(fitted)

    monkeypatch.setattr(parallel, "join_ray", join)
    monkeypatch.setattr(parallel, "train_fold_run_on_ranks", fit)
    compute = ComputeSettings(address="head:6379", ranks_per_training=2)
    found = train_members(specs("ranks", folds=2, max_epochs=1), compute=compute, on_event=ignore)

    assert calls == ["join head:6379", *["fit with 2 at None"] * 2, "leave"]
    assert found == (members, 0)


def test_checkpoints_of_a_finished_fold_run_are_removed(specs):
    (run_spec,) = specs(max_epochs=1)
    train_members([run_spec], compute=ONE, on_event=ignore)
    (folder,) = run_spec.runs.glob("*/")
    stale = folder / f"epoch-000001-{'0' * 16}.safetensors"
    stale.write_bytes(b"")

    train_members([run_spec], compute=ONE, on_event=ignore)

    assert not stale.exists()


def test_failed_fold_run_is_named_and_stops_the_others(specs):
    """Fold 1 has more rows, so it starts first and fails; fold 0 never starts."""
    run_specs = specs(folds=2, max_epochs=1)
    run_specs[1] = dataclasses.replace(run_specs[1], workload_settings={"raise_in_loss": True})
    received = []
    with pytest.raises(TrainingFailed, match=r"Seed 0, fold 1: ZeroDivisionError: the user's bug"):
        train_members(run_specs, compute=ONE, on_event=received.append)

    assert [(e.kind, e.fold_id) for e in received] == [("started", 1), ("failed", 1)]
    assert received[-1].reason.startswith("Seed 0, fold 1: ZeroDivisionError: the user's bug")


def test_ctrl_c_keeps_finished_fold_runs(specs):
    run_specs = specs(folds=2, max_epochs=2)

    def stop(event):
        if event.kind == "started" and event.fold_id == 0:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="1 of 2 fold runs finished"):
        train_members(run_specs, compute=ONE, on_event=stop)
    assert train_members(run_specs, compute=ONE, on_event=ignore)[1] == 1


@pytest.mark.parametrize(
    ("settings", "compute", "message"),
    [
        ({}, {"address": "127.0.0.1:1"}, "The Ray cluster at '127.0.0.1:1' cannot be reached"),
        ({}, {"cpus_per_worker": 1000.0}, r"1000 CPU \(cpus_per_worker\), but this machine"),
        ({"device": "cuda"}, {"address": "127.0.0.1:1"}, "'cuda', but compute.*is 0"),
        ({"device": "cpu"}, {"gpus_per_worker": 0.5}, "'cpu', but compute.*is 0.5"),
    ],
)
def test_unavailable_compute_is_rejected_within_a_minute(specs, settings, compute, message):
    run_specs, started = specs(folds=2, max_epochs=1, **settings), time.monotonic()
    with pytest.raises(SettingsError, match=message):
        train_members(run_specs, compute=ComputeSettings(**compute), on_event=ignore)
    assert time.monotonic() - started < 60  # Ray itself retries for minutes


@pytest.mark.slow
def test_killed_worker_is_replaced_and_two_workers_give_the_bits_of_one(specs, tmp_path):
    """The fold run resumes from its last checkpoint, and an event reports it."""
    options = {
        "seeds": (0, 1),
        "folds": 2,
        "kill_at_loss": 20,
        "only_first_time": str(tmp_path / "died"),
    }
    run_specs, received = specs("two", **options), []
    two, reused = train_members(run_specs, compute=TWO, on_event=received.append)
    one, _ = train_members(specs("one", **options), compute=ONE, on_event=ignore)

    lost = [event for event in received if event.kind == "lost"]
    assert [event.reason for event in lost] == ["its process was ended by signal 9"]
    own_events = [e for e in received if (e.seed, e.fold_id) == (lost[0].seed, lost[0].fold_id)]
    assert [e.epochs_done for e in own_events if e.kind == "started"] == [0, lost[0].epochs_done]
    assert lost[0].epochs_done > 0
    assert [e.epochs_done for e in own_events if e.kind == "epoch"] == [1, 2, 3, 4]
    assert reused == 0
    assert bits(two) == bits(one)
    assert len({m.weights for m in one}) == 4


@pytest.mark.exhaustive
@pytest.mark.slow
def test_fold_run_that_kills_every_worker_is_named_with_the_cause(specs):
    run_specs = specs(folds=2, kill_at_loss=3)
    compute = TWO.model_copy(update={"retries": 1})
    message = (
        r"Seed 0, fold \d: its process was ended by signal 9, 2 times in total\. "
        r".*memory probably ran out"
    )
    received = []
    with pytest.raises(TrainingFailed, match=message):
        train_members(run_specs, compute=compute, on_event=received.append)
    (failed,) = [e for e in received if e.kind == "failed"]
    events = [
        e.kind for e in received if e.fold_id == failed.fold_id and e.kind in ("lost", "failed")
    ]
    assert events == ["lost", "failed"]


WORKLOAD_SOURCE = """
    from tests.support.synthetic import SineWorkload

    class Own(SineWorkload):
        pass
"""


@pytest.mark.slow
def test_error_of_a_workload_outside_the_package_is_reported_with_its_file(specs, tmp_path):
    (tmp_path / "sluice_probe_workload.py").write_text(textwrap.dedent(WORKLOAD_SOURCE))
    run_specs = [
        dataclasses.replace(
            run_spec,
            workload="sluice_probe_workload:Own",
            workload_settings={"raise_in_loss": run_spec.fold.fold_id == 1},
            sys_path=(str(tmp_path),),
        )
        for run_spec in specs(folds=2, max_epochs=1)
    ]
    received = []
    try:
        with pytest.raises(TrainingFailed, match="Seed 0, fold 1: ZeroDivisionError") as caught:
            train_members(run_specs, compute=TWO, on_event=received.append)
    finally:
        sys.path.remove(str(tmp_path))

    assert "synthetic.py" in str(caught.value)


PARENT_SCRIPT = """
    import signal
    import sys
    from pathlib import Path
    from sluice.cluster.settings import ComputeSettings
    from sluice.base.errors import SluiceError
    from sluice.training.parallel import train_members
    from tests.sluice.training.conftest import make_specs

    def print_event(event):
        print(event.kind, flush=True)

    # A shell starts background jobs with Ctrl-C ignored, and the tests may be such a job.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    two = ComputeSettings(workers=2, cpus_per_worker=0.5)
    specs = make_specs(Path(sys.argv[1]), folds=2, max_epochs=100_000, patience_epochs=100_000)
    try:
        train_members(specs, compute=two, on_event=print_event)
    except SluiceError as error:
        print(type(error).__name__, error, flush=True)
        sys.exit(error.exit_code)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_all", "status", "message"),
    [
        (
            signal.SIGINT,
            True,
            130,
            "Interrupted Training was stopped with 0 of 2 fold runs finished",
        ),
        (signal.SIGKILL, False, -9, ""),
    ],
)
def test_worker_processes_end_with_their_parent(tmp_path, number, to_all, status, message):
    """Ctrl-C is sent to the whole process group, SIGKILL only to the parent.

    The script has no ``__main__`` guard, as may be the case for a user's script.
    """
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT_SCRIPT))
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "home")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seen = 0
    while seen < 5:
        line = parent.stdout.readline()
        assert line, parent.stderr.read()
        seen += line.strip() == "epoch"
    (os.killpg if to_all else os.kill)(parent.pid, number)
    sent = time.monotonic()
    output, errors = parent.communicate(timeout=60)
    while is_group_alive(parent.pid):
        assert time.monotonic() - sent < 60, "a process outlived its parent"
        time.sleep(0.05)

    assert parent.returncode == status, errors
    assert message in output
    assert "Traceback" not in errors
    assert not list((tmp_path / "home").rglob(".epoch-*"))
    assert list((tmp_path / "home").rglob("epoch-*"))


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
