"""Each trial of a search is a run of W&B; a failure of W&B stops nothing."""

import gc
import json
import os
import time
import warnings

import pytest

from sluice.base.errors import Interrupted
from sluice.cluster.ray_session import start_on_loopback
from sluice.cluster.settings import ComputeSettings
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_trials import _trial_end, trial_callbacks, wandb_callback
from sluice.tuning.search import run_search
from sluice.tuning.strategy import plan_search
from sluice.tuning.tune_space import decode
from sluice.tuning.tuner import run_tuner
from tests.sluice.tracking.test_wandb_mirror import fake_wandb, items, read_records
from tests.sluice.tuning.toy_space import BASE, ignore, settings, space
from tests.support.toy_search import LR, Toy

OWN = settings(4, "asha")
KEY = "0123456789" * 4


@pytest.fixture(scope="module")
def ray_here():
    import ray

    start_on_loopback(ray, num_cpus=2)
    yield
    ray.shutdown()
    with warnings.catch_warnings():  # Ray does not wait for the processes that it ends
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def values(config):
    _, searched = plan_search(space(), OWN, BASE)
    return decode(searched, BASE, config)


def search(folder, callbacks, on_report=ignore):
    return run_search(
        Toy(),
        space(),
        BASE,
        OWN,
        folder=folder / "study",
        on_report=on_report,
        compute=ComputeSettings(),
        callbacks=callbacks,
        run=run_tuner,
    )


def runs_in(folder):
    """Return the runs by id: name, group, config and history by epoch, from all files."""
    found = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in read_records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                empty = {"config": {}, "history": {}, "files": set()}
                run = found.setdefault(record.run.run_id, empty)
                run |= {"name": record.run.display_name, "group": record.run.run_group}
                run["files"].add(path)
                run["config"] |= items(record.run.config.update)
            elif kind == "config":
                run["config"] |= items(record.config.update)
            elif kind == "history":
                row = items(record.history.item)
                run["history"][row["epoch"]] = row
    return found


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ray_here")
def test_each_trial_is_a_run_that_a_resumed_search_continues(tmp_path):
    said = []

    def callbacks():
        return [
            wandb_callback(
                TrackingSettings(),
                group="toy-1",
                folder=tmp_path,
                decode_config=values,
                environ=os.environ,
                warn=said.append,
            )
        ]

    received = []

    def interrupt(trial, _trials):
        received.append(trial)
        if len(received) == 5:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        search(tmp_path, callbacks(), interrupt)
    result = search(tmp_path, callbacks())

    runs = runs_in(tmp_path)
    assert said == []
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
@pytest.mark.usefixtures("ray_here")
def test_a_failure_of_wandb_does_not_stop_the_search_and_is_reported_once(
    key, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_API_KEY", key)
    said = []
    callbacks = trial_callbacks(
        TrackingSettings(mode="online", timeout_s=16),
        group="toy",
        folder=tmp_path,
        decode_config=values,
        environ={"WANDB_API_KEY": key, "WANDB_BASE_URL": "http://127.0.0.1:9"},
        warn=said.append,
    )
    without = search(tmp_path / "without", [])
    result = search(tmp_path / "with", callbacks)

    assert [trial.loss for trial in result.trials] == [trial.loss for trial in without.trials]
    assert len(said) == 1
    assert "no longer sent to Weights & Biases" in said[0]
    assert key not in said[0]


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
def test_the_end_of_a_trial_has_its_reason(result, failed, state, reason):
    ending = _trial_end(result, failed=failed)

    assert ending["state"] == state
    assert reason in ending["reason"]


class TuneTrial:
    """What the callback reads of a trial of Tune."""

    def __init__(self):
        self.config, self.last_result, self.status = {"rate": 0}, {}, "RUNNING"

    def is_finished(self):
        return self.status != "RUNNING"


def report(callback, trials, trial, epoch, **more):
    """One report, with the values of the epoch."""
    curve = json.dumps([[epoch, 0.3, 0.6, 0.5]])
    config = {"rate": epoch}
    trial.last_result = {"epoch": epoch, "curve": curve, "reason": "", "config": config} | more
    callback.on_trial_result(0, trials, trial, trial.last_result)


@pytest.mark.slow
def test_a_run_shows_how_its_trial_ended(tmp_path):
    """Tune's calls stand for a search that is interrupted while one of its trials is paused."""
    said = []
    given = [TrackingSettings(tags=("t",))]
    more = {"group": "toy", "folder": tmp_path, "decode_config": dict, "environ": os.environ}
    more["warn"] = said.append
    callback = wandb_callback(*given, **more)
    trials = finished, failed, pruned, open_ = [TuneTrial() for _ in range(4)]
    for trial in trials:
        for epoch in (1, 2):
            callback.on_trial_start(0, trials, trial)
            report(callback, trials, trial, epoch)
    report(callback, trials, open_, 2)  # a worker was lost, and repeats an epoch
    report(callback, trials, finished, 3, reason="All 3 epochs were trained.")
    report(callback, trials, failed, 3, curve="[]", reason="loss is nan")
    callback.on_trial_complete(0, trials, finished)
    callback.on_trial_error(0, trials, failed)
    callback.on_trial_complete(0, trials, pruned)
    callback.on_experiment_end(trials)
    callback.on_experiment_end(trials)

    # All trials have ended when the search is resumed; only the run of the fourth is not complete.
    resumed = wandb_callback(*given, **more)
    for trial in trials:
        trial.status = "TERMINATED"
    resumed.on_trial_complete(0, trials, finished)
    resumed.on_experiment_end(trials)
    assert said == []
    runs = runs_in(tmp_path)
    assert [sorted(runs[f"toy-{n}"]["history"]) for n in range(4)] == [[1, 2, 3]] * 2 + [[1, 2]] * 2
    assert [runs[f"toy-{n}"]["config"]["rate"] for n in range(4)] == [3, 3, 2, 2]
    row = runs["toy-0"]["history"][3]
    assert (row["train_loss"], row["val_loss"], row["loss"]) == (0.3, 0.6, 0.5)
    ends = {}
    for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        records = read_records(path)
        last = [r.run for r in records if r.WhichOneof("record_type") == "run"][-1]
        (code,) = (r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit")
        ends.setdefault(last.run_id, []).append((code, last.notes, list(last.tags)))
    assert ends == {
        "toy-0": [(0, "", ["t"])],
        "toy-1": [(1, "loss is nan", ["t", "failed"])],
        "toy-2": [(0, "The scheduler stopped the trial after epoch 2.", ["t", "pruned"])],
        "toy-3": [
            (255, "The search ended before the trial did.", ["t", "interrupted"]),
            (0, "The scheduler stopped the trial after epoch 2.", ["t", "pruned"]),
        ],
    }


def test_a_writer_that_hangs_delays_the_end_by_the_time_limit_only(tmp_path):
    said = []
    callback = wandb_callback(
        TrackingSettings(mode="online", timeout_s=1.5),
        group="toy",
        folder=tmp_path / "wandb",
        decode_config=dict,
        environ=fake_wandb(tmp_path, "import time; time.sleep(600)"),
        warn=said.append,
    )
    stored = tmp_path / "wandb" / "wandb" / "run-1-toy-0"
    stored.mkdir(parents=True)
    (stored / "run-toy-0.wandb").touch()
    trials, started = [TuneTrial()], time.monotonic()
    for epoch in range(1, 2001):  # far more than fits into a pipe
        report(callback, trials, trials[0], epoch)
    callback.on_experiment_end(trials)

    assert time.monotonic() - started < 60
    assert len(said) == 1
    assert "not finished 1.5 s after" in said[0]
    assert f"wandb sync {tmp_path / 'wandb' / 'wandb'}/run-*" in said[0]


def test_trials_are_sent_only_online_and_with_a_key(tmp_path):
    said = []
    own = {"group": "toy", "folder": tmp_path, "decode_config": values, "environ": {}}
    for mode in ("offline", "off", "online"):
        assert trial_callbacks(TrackingSettings(mode=mode), **own, warn=said.append) == []
    assert len(said) == 1
    assert "WANDB_API_KEY is not set" in said[0]
