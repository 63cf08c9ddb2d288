"""Logging of fold runs to W&B during training; W&B cannot change or stop training (TRK-1)."""

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import Interrupted, TrainingFailed
from sluice.cluster.settings import ComputeSettings
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_fold_runs import log_fold_runs, training_group
from sluice.training.fold_run_events import fold_run_event
from sluice.training.parallel import train_members
from sluice.training.train_state import EpochResult
from tests.sluice.tracking.test_wandb_mirror import decode_items, make_fake_wandb, read_records
from tests.sluice.training.conftest import make_specs

ONE_WORKER = ComputeSettings(workers=1)
SECRET = "s3cr3tValue9"
GROUP = training_group("sine", data="d", config="c", code="e")


def open_log(home, *, warn, settings=None, environ=os.environ):
    return log_fold_runs(
        settings or TrackingSettings(project="p", tags=("t",), log_weights=True),
        pipeline="sine",
        group=GROUP,
        config={"training": {"max_epochs": 4}, "login": {"password": SECRET}},
        store=ArtifactStore(home / "artifacts"),
        folder=home / "wandb",
        environ=environ,
        warn=warn,
    )


def train_with_wandb(specs, home, *, on_event=lambda _: None, **options):
    """Train with W&B; return the members and the warning messages."""
    messages = []
    with open_log(home, warn=messages.append, **options) as log_to_wandb:

        def send_event(event):
            log_to_wandb(event)
            on_event(event)

        members, _ = train_members(specs, compute=ONE_WORKER, on_event=send_event)
    return members, messages


def read_runs(home):
    """Return the content of each run by its id; every run must have exactly one folder."""
    runs = {}
    for path in (home / "wandb").glob("wandb/offline-run-*/*.wandb"):
        run = {"history": {}, "summary": {}, "config": {}, "artifacts": []}
        for record in read_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run |= {"name": record.run.display_name, "group": record.run.run_group}
                run |= {"tags": set(record.run.tags), "notes": record.run.notes}
                run["config"] |= decode_items(record.run.config.update)
                run_id = record.run.run_id
            elif kind == "history":
                row = decode_items(record.history.item)
                run["history"][row["_step"]] = row
            elif kind == "summary":
                run["summary"] |= decode_items(record.summary.update)
            elif kind == "exit":
                run["exit"] = record.exit.exit_code
            elif kind == "artifact":
                run["artifacts"].append(record.artifact)
            elif kind == "request" and record.request.HasField("log_artifact"):
                run["artifacts"].append(record.request.log_artifact.artifact)
        assert run_id not in runs
        runs[run_id] = run
    return runs


def make_run_id(seed):
    return f"{GROUP}-seed{seed}-fold0"


def make_result(epoch, **values):
    return EpochResult(
        epoch=epoch,
        train_loss=1 / epoch,
        val_loss=2 / epoch,
        learning_rate=0.1,
        grad_norm_mean=1.0,
        grad_norm_max=2.0,
        clipped_share=0.0,
        improved=True,
        seconds=0.1,
        **values,
    )


@pytest.mark.slow
def test_resumed_training_has_one_complete_run_per_fold_run(tmp_path):
    home = tmp_path / "home"
    specs = make_specs(home, seeds=(0, 1))
    untracked_members, _ = train_members(
        make_specs(tmp_path / "without", seeds=(0, 1)), compute=ONE_WORKER, on_event=lambda _: None
    )

    def interrupt(event):
        if (event.seed, event.epochs_done) == (0, 2):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train_with_wandb(specs, home, on_event=interrupt)

    (run,) = read_runs(home).values()
    assert (run["summary"]["state"], run["exit"]) == ("interrupted", 255)
    assert "stopped with 0 of 2" in run["summary"]["reason"]
    assert run["notes"] == run["summary"]["reason"]
    assert sorted(run["history"]) == [1, 2]

    members, messages = train_with_wandb(specs, home)

    assert messages == []
    assert [m.weights for m in members] == [m.weights for m in untracked_members]
    runs = read_runs(home)
    assert sorted(runs) == [make_run_id(0), make_run_id(1)]
    for member in members:
        run = runs[make_run_id(member.seed)]
        assert (run["name"], run["group"]) == (f"seed {member.seed} fold 0", GROUP)
        assert (run["tags"], run["notes"], run["exit"]) == ({"t"}, "", 0)
        assert run["config"]["training"] == {"max_epochs": 4}
        assert (run["config"]["seed"], run["config"]["pipeline"]) == (member.seed, "sine")
        assert {step: row["epoch"] for step, row in run["history"].items()} == {
            epoch: epoch for epoch in range(1, 5)
        }
        assert run["history"][member.best_epoch]["val/loss"] == member.val_loss
        assert {"train/loss", "train/learning_rate", "epoch_seconds"} <= run["history"][1].keys()
        assert run["summary"]["best/val_loss"] == member.val_loss
        for name, value in member.test_metrics.items():
            assert run["summary"][f"test/{name}"] == value
        (artifact,) = run["artifacts"]
        assert (artifact.name, artifact.type) == (f"weights-sine-seed{member.seed}-fold0", "model")
        assert set(artifact.aliases) == {"latest", member.weights[:12]}
        (entry,) = artifact.manifest.contents
        weights = ArtifactStore(home / "artifacts").get(member.weights)
        assert Path(entry.local_path).read_bytes() == weights
    files = {path: path.read_bytes() for path in (home / "wandb").rglob("*") if path.is_file()}
    assert [path for path, content in files.items() if SECRET.encode() in content] == []

    # Fold runs that are reused and already logged start no process, which would fail here.
    assert (
        train_with_wandb(specs, home, environ=make_fake_wandb(tmp_path, "raise RuntimeError"))[1]
        == []
    )


@pytest.mark.slow
def test_run_of_a_failed_fold_run_has_its_error_and_others_are_stopped(tmp_path):
    home = tmp_path / "home"
    regular, failing = make_specs(home, seeds=(0, 1), max_epochs=3)
    failing = dataclasses.replace(
        failing, training=failing.training.model_copy(update={"learning_rate": 1e30})
    )
    settings = TrackingSettings(log_weights=False)
    messages = []

    def train_both():
        with open_log(home, warn=messages.append, settings=settings) as log:
            log(fold_run_event(dataclasses.replace(regular, seed=7), "started", 0))
            train_members([regular, failing], compute=ONE_WORKER, on_event=log)

    with pytest.raises(TrainingFailed):
        train_both()

    assert messages == []
    runs = read_runs(home)
    run_ends = {run_id: (run["summary"]["state"], run["exit"]) for run_id, run in runs.items()}
    assert run_ends == {
        make_run_id(0): ("finished", 0),
        make_run_id(1): ("failed", 1),
        make_run_id(7): ("stopped", 255),
    }
    assert "Seed 1, fold 0" in runs[make_run_id(1)]["notes"]
    assert runs[make_run_id(7)]["notes"] == runs[make_run_id(1)]["notes"]
    assert runs[make_run_id(1)]["tags"] == {"failed"}
    assert runs[make_run_id(0)]["artifacts"] == []


@pytest.mark.slow
def test_reused_fold_run_is_logged_from_its_event_log(tmp_path):
    specs = make_specs(tmp_path, max_epochs=2)
    (member,), _ = train_members(specs, compute=ONE_WORKER, on_event=lambda _: None)

    assert train_with_wandb(specs, tmp_path)[0] == [member]

    (run,) = read_runs(tmp_path).values()
    assert sorted(run["history"]) == [1, 2]
    assert run["history"][member.best_epoch]["train/loss"] == member.train_loss


@pytest.mark.slow
def test_run_of_a_killed_training_is_marked_interrupted(tmp_path):
    (spec,) = make_specs(tmp_path)
    with open_log(tmp_path, warn=print) as log:
        log(fold_run_event(spec, "epoch", 1, result=make_result(1)))
        log.sender.close(60)  # the pipe closes without an end message, as after a kill

    (run,) = read_runs(tmp_path).values()
    assert (run["summary"]["state"], run["exit"]) == ("interrupted", 255)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import time; time.sleep(600)", "not finished 1.5 s after the last event"),
        ("raise RuntimeError('no such project')", "RuntimeError: no such project"),
        ("import os; os._exit(7)", "exit code 7"),
    ],
)
def test_wandb_failure_is_reported_once_and_does_not_delay_training(tmp_path, body, reason):
    (spec,) = make_specs(tmp_path)
    settings, messages = TrackingSettings(timeout_s=1.5), []
    environ, started = make_fake_wandb(tmp_path, body), time.monotonic()
    with open_log(tmp_path, warn=messages.append, settings=settings, environ=environ) as log:
        for epoch in range(1, 2001):  # more than the buffer of a pipe holds
            log(fold_run_event(spec, "epoch", epoch, result=make_result(epoch)))
    assert time.monotonic() - started < 60
    if "sleep" not in body and "not finished" in str(messages):
        pytest.skip("this machine is too busy to start a process within the time limit")
    assert len(messages) == 1
    assert reason in messages[0]
    assert "The training is not affected" in messages[0]


def test_process_gets_the_key_and_collects_system_metrics_only_if_enabled(tmp_path):
    (spec,) = make_specs(tmp_path)
    body = (
        "import json, os\n"
        "def Settings(**settings):\n"
        "    with open('seen.json', 'w') as file:\n"
        "        json.dump(settings | {'key': os.environ['WANDB_API_KEY']}, file)\n"
        "    raise RuntimeError('seen')\n"
        "init = None\n"
    )
    environ = {**make_fake_wandb(tmp_path, body), "WANDB_API_KEY": "k" * 40}
    received_settings = []
    for system_metrics in (False, True):
        settings = TrackingSettings(mode="online", system_metrics=system_metrics)
        messages = []
        with open_log(tmp_path, warn=messages.append, settings=settings, environ=environ) as log:
            log(fold_run_event(spec, "started", 0))
        assert "RuntimeError: seen" in messages[0]
        received_settings.append(json.loads((tmp_path / "wandb" / "seen.json").read_text()))
    for name in ("x_disable_stats", "x_disable_machine_info"):  # either disables the collector
        assert [settings[name] for settings in received_settings] == [True, False]
    assert all(settings["x_disable_meta"] for settings in received_settings)
    assert received_settings[1]["x_stats_pid"] == os.getpid()
    assert received_settings[0]["key"] == "k" * 40


def test_no_process_is_started_if_tracking_is_off_or_has_no_key(tmp_path):
    (spec,) = make_specs(tmp_path)
    messages = []
    for settings in (
        TrackingSettings(mode="off"),
        TrackingSettings(fold_runs=False),
        TrackingSettings(mode="online"),
    ):
        with open_log(tmp_path, warn=messages.append, settings=settings, environ={}) as log:
            log(fold_run_event(spec, "started", 0))
    assert not (tmp_path / "wandb").exists()
    assert len(messages) == 1
    assert "WANDB_API_KEY is not set" in messages[0]
