"""Logging of the trials of a search to W&B; failures of W&B do not stop the search."""

import gc
import json
import os
import time
import warnings
from pathlib import Path

import pytest

from sluice.base.errors import Interrupted
from sluice.cluster.ray_session import start_on_loopback
from sluice.cluster.settings import ComputeSettings
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_trials import _state_and_reason, trial_callbacks, wandb_callback
from sluice.tuning.search import run_search
from sluice.tuning.strategy import plan_search
from sluice.tuning.tune_space import decode
from sluice.tuning.tuner import run_tuner
from tests.sluice.tracking.test_wandb_mirror import decode_items, make_fake_wandb, read_records
from tests.sluice.tuning.toy_space import BASE, ignore, settings, space
from tests.support.toy_search import LR, Toy

ROOT = Path(__file__).parents[3]
SEARCH_SETTINGS = settings(4, "asha")
KEY = "0123456789" * 4


@pytest.fixture(scope="module")
def ray_session():
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # for Ray's processes, which import the toy search
        start_on_loopback(ray, num_cpus=2)
        yield
        ray.shutdown()
    with warnings.catch_warnings():  # Ray does not wait for the processes that it terminates
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def decode_values(config):
    _, searched = plan_search(space(), SEARCH_SETTINGS, BASE)
    return decode(searched, BASE, config)


def run_toy_search(folder, callbacks, on_report=ignore):
    return run_search(
        Toy(),
        space(),
        BASE,
        SEARCH_SETTINGS,
        folder=folder / "study",
        on_report=on_report,
        compute=ComputeSettings(),
        callbacks=callbacks,
        run=run_tuner,
    )


def read_runs(folder):
    """Return the runs by id: name, group, config and history by epoch, from all files."""
    runs = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in read_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                empty = {"config": {}, "history": {}, "files": set()}
                run = runs.setdefault(record.run.run_id, empty)
                run |= {"name": record.run.display_name, "group": record.run.run_group}
                run["files"].add(path)
                run["config"] |= decode_items(record.run.config.update)
            elif kind == "config":
                run["config"] |= decode_items(record.config.update)
            elif kind == "history":
                row = decode_items(record.history.item)
                run["history"][row["epoch"]] = row
    return runs


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ray_session")
def test_each_trial_is_one_run_that_a_resumed_search_continues(tmp_path):
    messages = []

    def callbacks():
        return [
            wandb_callback(
                TrackingSettings(),
                group="toy-1",
                folder=tmp_path,
                decode_config=decode_values,
                environ=os.environ,
                warn=messages.append,
            )
        ]

    received = []

    def interrupt(trial, _trials):
        received.append(trial)
        if len(received) == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run_toy_search(tmp_path, callbacks(), interrupt)
    result = run_toy_search(tmp_path, callbacks())

    runs = read_runs(tmp_path)
    assert messages == []
    assert sorted(runs) == [f"toy-1-{number}" for number in range(4)]
    assert any(len(run["files"]) > 1 for run in runs.values())
    for trial in result.trials:
        run = runs[f"toy-1-{trial.id}"]
        assert (run["name"], run["group"]) == (f"trial {trial.id}", "toy-1")
        assert run["config"][LR] == trial.params[LR]
        assert {epoch: row["loss"] for epoch, row in run["history"].items()} == pytest.approx(
            {each.epoch: each.kept_loss for each in trial.epochs}
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", ["no-key", KEY])
@pytest.mark.usefixtures("ray_session")
def test_wandb_failure_is_reported_once_and_does_not_change_the_search(key, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", key)
    messages = []
    callbacks = trial_callbacks(
        TrackingSettings(mode="online", timeout_s=16),
        group="toy",
        folder=tmp_path,
        decode_config=decode_values,
        environ={"WANDB_API_KEY": key, "WANDB_BASE_URL": "http://127.0.0.1:9"},
        warn=messages.append,
    )
    untracked = run_toy_search(tmp_path / "without", [])
    result = run_toy_search(tmp_path / "with", callbacks)

    assert [trial.loss for trial in result.trials] == [trial.loss for trial in untracked.trials]
    assert len(messages) == 1
    assert "no longer sent to Weights & Biases" in messages[0]
    assert key not in messages[0]


CURVE = json.dumps([[3, 0.5, 0.6, 0.6]])


@pytest.mark.parametrize(
    ("result", "failed", "state", "reason"),
    [
        ({"reason": "All epochs.", "curve": CURVE}, False, "finished", "All epochs."),
        ({"reason": "", "curve": CURVE, "epoch": 3}, False, "pruned", "after epoch 3"),
        ({"reason": "loss is nan", "curve": "[]"}, False, "failed", "loss is nan"),
        ({"reason": "", "curve": CURVE}, True, "failed", "worker of the trial was lost"),
        ({}, True, "failed", "worker of the trial was lost"),
        ({"reason": "https://u:hunter2@host failed"}, False, "failed", "https://u:***@host failed"),
    ],
)
def test_end_of_a_trial_has_state_and_reason(result, failed, state, reason):
    end = _state_and_reason(result, failed=failed)

    assert end["state"] == state
    assert reason in end["reason"]


class TuneTrial:
    """Stand-in for a trial of Ray Tune with the attributes that the callback reads."""

    def __init__(self):
        self.config, self.last_result, self.status = {"rate": 0}, {}, "RUNNING"

    def is_finished(self):
        return self.status != "RUNNING"


def report_epoch(callback, trials, trial, epoch, **changes):
    """Report one epoch of a trial to the callback."""
    curve = json.dumps([[epoch, 0.3, 0.6, 0.5]])
    config = {"rate": epoch}
    trial.last_result = {"epoch": epoch, "curve": curve, "reason": "", "config": config} | changes
    callback.on_trial_result(0, trials, trial, trial.last_result)


@pytest.mark.slow
def test_run_has_exit_code_notes_and_tags_of_its_trial(tmp_path):
    """The calls are those of a search that is interrupted while one of its trials is paused."""
    messages = []
    arguments = [TrackingSettings(tags=("t",))]
    options = {"group": "toy", "folder": tmp_path, "decode_config": dict, "environ": os.environ}
    options["warn"] = messages.append
    callback = wandb_callback(*arguments, **options)
    trials = finished, failed, pruned, paused = [TuneTrial() for _ in range(4)]
    for trial in trials:
        for epoch in (1, 2):
            callback.on_trial_start(0, trials, trial)
            report_epoch(callback, trials, trial, epoch)
    report_epoch(callback, trials, paused, 2)  # a lost worker repeats an epoch
    report_epoch(callback, trials, finished, 3, reason="All 3 epochs were trained.")
    report_epoch(callback, trials, failed, 3, curve="[]", reason="loss is nan")
    callback.on_trial_complete(0, trials, finished)
    callback.on_trial_error(0, trials, failed)
    callback.on_trial_complete(0, trials, pruned)
    callback.on_experiment_end(trials)
    callback.on_experiment_end(trials)

    # The resumed search has ended all trials; only the run of the fourth is incomplete.
    resumed = wandb_callback(*arguments, **options)
    for trial in trials:
        trial.status = "TERMINATED"
    resumed.on_trial_complete(0, trials, finished)
    resumed.on_experiment_end(trials)
    assert messages == []
    runs = read_runs(tmp_path)
    assert [sorted(runs[f"toy-{n}"]["history"]) for n in range(4)] == [[1, 2, 3]] * 2 + [[1, 2]] * 2
    assert [runs[f"toy-{n}"]["config"]["rate"] for n in range(4)] == [3, 3, 2, 2]
    row = runs["toy-0"]["history"][3]
    assert (row["train_loss"], row["val_loss"], row["loss"]) == (0.3, 0.6, 0.5)
    run_ends = {}
    for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        records = read_records(path)
        last = [r.run for r in records if r.WhichOneof("record_type") == "run"][-1]
        (code,) = (r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit")
        run_ends.setdefault(last.run_id, []).append((code, last.notes, list(last.tags)))
    assert run_ends == {
        "toy-0": [(0, "", ["t"])],
        "toy-1": [(1, "loss is nan", ["t", "failed"])],
        "toy-2": [(0, "The scheduler stopped the trial after epoch 2.", ["t", "pruned"])],
        "toy-3": [
            (255, "The search ended before the trial did.", ["t", "interrupted"]),
            (0, "The scheduler stopped the trial after epoch 2.", ["t", "pruned"]),
        ],
    }


def test_hanging_writer_delays_the_end_at_most_by_the_timeout(tmp_path):
    messages = []
    callback = wandb_callback(
        TrackingSettings(mode="online", timeout_s=1.5),
        group="toy",
        folder=tmp_path / "wandb",
        decode_config=dict,
        environ=make_fake_wandb(tmp_path, "import time; time.sleep(600)"),
        warn=messages.append,
    )
    offline_run = tmp_path / "wandb" / "wandb" / "run-1-toy-0"
    offline_run.mkdir(parents=True)
    (offline_run / "run-toy-0.wandb").touch()
    trials, started = [TuneTrial()], time.monotonic()
    for epoch in range(1, 2001):  # more than the buffer of a pipe holds
        report_epoch(callback, trials, trials[0], epoch)
    callback.on_experiment_end(trials)

    assert time.monotonic() - started < 60
    assert len(messages) == 1
    assert "not finished 1.5 s after" in messages[0]
    assert f"wandb sync {tmp_path / 'wandb' / 'wandb'}/run-*" in messages[0]


def test_trials_are_sent_only_in_online_mode_with_a_key(tmp_path):
    messages = []
    options = {"group": "toy", "folder": tmp_path, "decode_config": decode_values, "environ": {}}
    for mode in ("offline", "off", "online"):
        assert trial_callbacks(TrackingSettings(mode=mode), **options, warn=messages.append) == []
    assert len(messages) == 1
    assert "WANDB_API_KEY is not set" in messages[0]
