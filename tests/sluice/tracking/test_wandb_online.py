"""Data that a W&B server receives from a training, a search and a registry mirror (TRK-1)."""

import os
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_mirror import mirror
from sluice.tracking.wandb_trials import wandb_callback
from sluice.training.fold_run_events import fold_run_event
from tests.sluice.tracking.test_wandb_fold_runs import (
    GROUP,
    make_result,
    make_run_id,
    open_log,
    train_with_wandb,
)
from tests.sluice.tracking.test_wandb_mirror import RUN
from tests.sluice.tracking.test_wandb_trials import TuneTrial, report_epoch
from tests.sluice.training.conftest import make_specs
from tests.support.wandb_server import serve_wandb

KEY = "0123456789" * 4
ONLINE = TrackingSettings(mode="online", project="p", tags=("t",), log_weights=True, timeout_s=60)


@pytest.fixture
def server():
    with serve_wandb(KEY) as wandb_server:
        yield wandb_server


@pytest.mark.slow
def test_epochs_are_sent_during_training_and_not_repeated_after_a_kill(server, tmp_path):
    environ, messages = os.environ | server.environ, []
    (spec,) = make_specs(tmp_path)

    with open_log(tmp_path, warn=messages.append, settings=ONLINE, environ=environ) as log:
        for epoch in (1, 2):
            log(fold_run_event(spec, "epoch", epoch, result=make_result(epoch)))
        server.wait_for(make_run_id(0), step=2)
        assert server.runs[make_run_id(0)].exit_code is None
        log.sender.close(60)  # the pipe closes without an end message, as after a kill
    assert server.runs[make_run_id(0)].exit_code == 255
    assert "Run the training again" in server.runs[make_run_id(0)].notes

    (member,), warnings = train_with_wandb([spec], tmp_path, settings=ONLINE, environ=environ)

    assert messages == warnings == []
    run = server.runs[make_run_id(0)]
    assert (run.project, run.name, run.group, run.job) == ("p", "seed 0 fold 0", GROUP, "training")
    assert (run.tags, run.exit_code, run.notes) == (("t",), 0, "Finished after it was resumed.")
    assert [row["epoch"] for row in run.rows] == [1, 2, 3, 4]
    assert run.history[1]["train/loss"] == 1.0  # written by the first process
    assert run.history[4]["train/loss"] != 1 / 4
    assert run.config["seed"] == 0
    assert run.summary["best/val_loss"] == member.val_loss
    weights = ArtifactStore(tmp_path / "artifacts").get(member.weights)
    assert run.artifacts["weights-sine-seed0-fold0"]["model.safetensors"] == weights


@pytest.mark.exhaustive  # wandb sends rows every 15 s
def test_trials_are_sent_with_the_group_of_the_search_and_their_end(server, tmp_path):
    messages = []
    callback = wandb_callback(
        ONLINE,
        group="toy-1",
        folder=tmp_path,
        decode_config=dict,
        environ=os.environ | server.environ,
        warn=messages.append,
    )
    trials = first, second = [TuneTrial() for _ in range(2)]
    for epoch in (1, 2):
        for trial in trials:
            callback.on_trial_start(0, trials, trial)
            report_epoch(callback, trials, trial, epoch)
    server.wait_for("toy-1-1", step=2)
    report_epoch(callback, trials, second, 3, curve="[]", reason="loss is nan")
    callback.on_trial_error(0, trials, second)
    callback.on_trial_complete(0, trials, first)
    callback.on_experiment_end(trials)

    assert messages == []
    runs = server.runs
    assert {name: (run.group, run.exit_code) for name, run in runs.items()} == {
        "toy-1-0": ("toy-1", 0),
        "toy-1-1": ("toy-1", 1),
    }
    assert [row["loss"] for row in runs["toy-1-0"].rows] == [0.5, 0.5]
    assert runs["toy-1-1"].notes == "loss is nan"
    assert set(runs["toy-1-1"].tags) == {"t", "failed"}


@pytest.mark.slow
def test_version_is_sent_once(server, tmp_path):
    mirrored = [
        mirror(RUN, ONLINE, folder=tmp_path / "wandb", environ=os.environ | server.environ)
        for _ in range(2)
    ]

    assert all(each.ok for each in mirrored), mirrored
    assert [each.reason for each in mirrored] == [
        "Mirrored to Weights & Biases (online).",
        "This run was mirrored already.",
    ]
    run = server.runs[RUN.run_id]
    assert (run.name, run.group, run.notes) == ("bars abc", "bars", "REJECT: no gain")
    assert set(run.tags) == {"t", "promote"}
    assert run.exit_code == 0
    assert run.summary["test/loss"] == 0.643
    assert [row["val/seed1-fold1/loss"] for row in run.rows] == [3, 3 / 2, 1]
    assert run.config["candidate"] == "c" * 64


@pytest.mark.slow
def test_wrong_key_is_reported_and_not_shown(server, tmp_path):
    wrong_key = "9876543210" * 4
    environ = os.environ | server.environ | {"WANDB_API_KEY": wrong_key}

    result = mirror(RUN, ONLINE, folder=tmp_path / "wandb", environ=environ)

    assert not result.ok
    assert server.num_refused > 0
    assert wrong_key not in result.reason
    assert server.runs == {}
    assert not list(Path(tmp_path / "wandb" / "mirrored").glob("*.json"))
