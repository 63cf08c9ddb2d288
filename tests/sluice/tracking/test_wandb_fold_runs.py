"""TRK-1: each fold run is a run of W&B, written while it trains; W&B changes and stops nothing."""

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
from tests.sluice.tracking.test_wandb_mirror import fake_wandb, items, read_records
from tests.sluice.training.conftest import make_specs

ONE = ComputeSettings(workers=1)
SECRET = "s3cr3tValue9"
GROUP = training_group("sine", data="d", config="c", code="e")


def fold_runs(home, *, warn, settings=None, environ=os.environ):
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


def train(specs, home, *, on_event=lambda _: None, **options):
    """Train with W&B; return the members and the warnings."""
    said = []
    with fold_runs(home, warn=said.append, **options) as log_to_wandb:

        def both(event):
            log_to_wandb(event)
            on_event(event)

        members, _ = train_members(specs, compute=ONE, on_event=both)
    return members, said


def runs_in(home):
    """Return the content of each run by its id; there is one folder for each."""
    found = {}
    for path in (home / "wandb").glob("wandb/offline-run-*/*.wandb"):
        run = {"history": {}, "summary": {}, "config": {}, "artifacts": []}
        for record in read_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run |= {"name": record.run.display_name, "group": record.run.run_group}
                run |= {"tags": set(record.run.tags), "notes": record.run.notes}
                run["config"] |= items(record.run.config.update)
                run_id = record.run.run_id
            elif kind == "history":
                row = items(record.history.item)
                run["history"][row["_step"]] = row
            elif kind == "summary":
                run["summary"] |= items(record.summary.update)
            elif kind == "exit":
                run["exit"] = record.exit.exit_code
            elif kind == "artifact":
                run["artifacts"].append(record.artifact)
            elif kind == "request" and record.request.HasField("log_artifact"):
                run["artifacts"].append(record.request.log_artifact.artifact)
        assert run_id not in found
        found[run_id] = run
    return found


def id_of(seed):
    return f"{GROUP}-seed{seed}-fold0"


def result(epoch, **values):
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
def test_a_resumed_training_has_one_complete_run_for_each_fold_run(tmp_path):
    home = tmp_path / "home"
    specs = make_specs(home, seeds=(0, 1))
    without, _ = train_members(
        make_specs(tmp_path / "without", seeds=(0, 1)), compute=ONE, on_event=lambda _: None
    )

    def interrupt(event):
        if (event.seed, event.epochs_done) == (0, 2):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(specs, home, on_event=interrupt)

    (run,) = runs_in(home).values()
    assert (run["summary"]["state"], run["exit"]) == ("interrupted", 255)
    assert "stopped with 0 of 2" in run["summary"]["reason"]
    assert run["notes"] == run["summary"]["reason"]
    assert sorted(run["history"]) == [1, 2]

    members, said = train(specs, home)

    assert said == []
    assert [m.weights for m in members] == [m.weights for m in without]
    runs = runs_in(home)
    assert sorted(runs) == [id_of(0), id_of(1)]
    for member in members:
        run = runs[id_of(member.seed)]
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

    # Reused fold runs are logged once: no process is started without a Python to run it.
    assert train(specs, home, environ=fake_wandb(tmp_path, "raise RuntimeError"))[1] == []


@pytest.mark.slow
def test_a_failed_fold_run_has_its_error_and_stops_the_others(tmp_path):
    home = tmp_path / "home"
    steady, failing = make_specs(home, seeds=(0, 1), max_epochs=3)
    failing = dataclasses.replace(
        failing, training=failing.training.model_copy(update={"learning_rate": 1e30})
    )
    settings = TrackingSettings(log_weights=False)
    said = []

    def train_both():
        with fold_runs(home, warn=said.append, settings=settings) as log:
            log(fold_run_event(dataclasses.replace(steady, seed=7), "started", 0))
            train_members([steady, failing], compute=ONE, on_event=log)

    with pytest.raises(TrainingFailed):
        train_both()

    assert said == []
    runs = runs_in(home)
    ended = {run_id: (run["summary"]["state"], run["exit"]) for run_id, run in runs.items()}
    assert ended == {id_of(0): ("finished", 0), id_of(1): ("failed", 1), id_of(7): ("stopped", 255)}
    assert "Seed 1, fold 0" in runs[id_of(1)]["notes"]
    assert runs[id_of(7)]["notes"] == runs[id_of(1)]["notes"]
    assert runs[id_of(1)]["tags"] == {"failed"}
    assert runs[id_of(0)]["artifacts"] == []


@pytest.mark.slow
def test_a_reused_fold_run_that_was_not_logged_gets_its_curve_from_its_log(tmp_path):
    specs = make_specs(tmp_path, max_epochs=2)
    (member,), _ = train_members(specs, compute=ONE, on_event=lambda _: None)

    assert train(specs, tmp_path)[0] == [member]

    (run,) = runs_in(tmp_path).values()
    assert sorted(run["history"]) == [1, 2]
    assert run["history"][member.best_epoch]["train/loss"] == member.train_loss


@pytest.mark.slow
def test_runs_of_a_killed_training_are_closed(tmp_path):
    (spec,) = make_specs(tmp_path)
    with fold_runs(tmp_path, warn=print) as log:
        log(fold_run_event(spec, "epoch", 1, result=result(1)))
        log.sender.close(60)  # the pipe ends without a last message, as after a kill

    (run,) = runs_in(tmp_path).values()
    assert (run["summary"]["state"], run["exit"]) == ("interrupted", 255)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import time; time.sleep(600)", "not finished 1.5 s after the last event"),
        ("raise RuntimeError('no such project')", "RuntimeError: no such project"),
        ("import os; os._exit(7)", "exit code 7"),
    ],
)
def test_a_failure_of_wandb_neither_delays_nor_stops_and_is_reported_once(tmp_path, body, reason):
    (spec,) = make_specs(tmp_path)
    settings, said = TrackingSettings(timeout_s=1.5), []
    environ, started = fake_wandb(tmp_path, body), time.monotonic()
    with fold_runs(tmp_path, warn=said.append, settings=settings, environ=environ) as log:
        for epoch in range(1, 2001):  # far more than fits into a pipe
            log(fold_run_event(spec, "epoch", epoch, result=result(epoch)))
    assert time.monotonic() - started < 60
    if "sleep" not in body and "not finished" in str(said):
        pytest.skip("this machine is too busy to start a process in the time limit")
    assert len(said) == 1
    assert reason in said[0]
    assert "The training is not affected" in said[0]


def test_the_key_and_the_collector_of_system_metrics(tmp_path):
    """The process gets the key of the user, and wandb's collector only if it is enabled."""
    (spec,) = make_specs(tmp_path)
    body = (
        "import json, os\n"
        "def Settings(**settings):\n"
        "    with open('seen.json', 'w') as file:\n"
        "        json.dump(settings | {'key': os.environ['WANDB_API_KEY']}, file)\n"
        "    raise RuntimeError('seen')\n"
        "init = None\n"
    )
    environ = {**fake_wandb(tmp_path, body), "WANDB_API_KEY": "k" * 40}
    seen = []
    for system_metrics in (False, True):
        settings = TrackingSettings(mode="online", system_metrics=system_metrics)
        said = []
        with fold_runs(tmp_path, warn=said.append, settings=settings, environ=environ) as log:
            log(fold_run_event(spec, "started", 0))
        assert "RuntimeError: seen" in said[0]
        seen.append(json.loads((tmp_path / "wandb" / "seen.json").read_text()))
    for name in ("x_disable_stats", "x_disable_machine_info"):  # either disables the collector
        assert [settings[name] for settings in seen] == [True, False]
    assert all(settings["x_disable_meta"] for settings in seen)
    assert seen[1]["x_stats_pid"] == os.getpid()
    assert seen[0]["key"] == "k" * 40


def test_nothing_is_started_if_it_is_off_or_has_no_key(tmp_path):
    (spec,) = make_specs(tmp_path)
    said = []
    for settings in (
        TrackingSettings(mode="off"),
        TrackingSettings(fold_runs=False),
        TrackingSettings(mode="online"),
    ):
        with fold_runs(tmp_path, warn=said.append, settings=settings, environ={}) as log:
            log(fold_run_event(spec, "started", 0))
    assert not (tmp_path / "wandb").exists()
    assert len(said) == 1
    assert "WANDB_API_KEY is not set" in said[0]
