"""The trainable in a real ``ray.tune.Tuner``: identical bits, even if its worker is killed."""

import dataclasses
import errno
import gc
import json
import math
import os
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from ray import cloudpickle, tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
from ray.tune.search import Searcher

from sluice.base.errors import (
    ContractError,
    IntegrityError,
    OutOfMemory,
    SettingsError,
    StorageError,
    TrainingFailed,
)
from sluice.training.checkpoint import load_checkpoint
from sluice.tuning.resumable import resumable
from sluice.tuning.spaces import Space
from sluice.tuning.trainable import make_trainable, trial_error
from sluice.tuning.trial_schedule import read_schedule
from tests.sluice.tuning.conftest import SINE
from tests.sluice.tuning.test_objective import FAST, ONE, assert_same_bits, steps
from tests.support.toy_search import LR, curve
from tests.support.tuned_trials import FailingByRate, KilledAfterReport

pytestmark = pytest.mark.slow

CLIP, DROPOUT = "training.clip_norm", "model.dropout"
SPACE = Space.parse(
    {
        "parameters": {
            LR: {"kind": "log_uniform", "low": 1e-4, "high": 1.0},
            CLIP: {"kind": "log_uniform", "low": 0.01, "high": 10.0},
            DROPOUT: {"kind": "uniform", "low": 0.0, "high": 0.5},
        }
    },
    where="test",
)
REPORTS = (2, 4, 6)


@pytest.fixture(scope="module", autouse=True)
def ray_here():
    import ray

    path = os.pathsep.join(part for part in sys.path if part)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    yield
    ray.shutdown()
    with warnings.catch_warnings():  # Ray does not wait for the processes that it ends
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class GivenRates(Searcher):
    """Suggests trials of given learning rates."""

    def __init__(self, rates):
        super().__init__(metric="loss", mode="min")
        self.rates = list(rates)

    def suggest(self, trial_id):  # noqa: ARG002 - part of Ray's protocol
        if not self.rates:
            return Searcher.FINISHED
        return {LR: self.rates.pop(0), CLIP: 5.0, DROPOUT: 0.1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


class ReportLog(tune.Callback):
    """Writes every report of a trial to a file beside the study.

    Ray's own files of a trial lose reports: when a trial continues, Ray copies them from its
    storage, where the latest reports may be missing.
    """

    def __init__(self, folder):
        self.folder = folder

    def on_trial_result(self, iteration, trials, trial, result, **info):  # noqa: ARG002
        with (self.folder / f"{trial.trial_id}.jsonl").open("a") as file:
            kept = {name: result[name] for name in ("curve", "damaged_checkpoints")}
            file.write(json.dumps(kept) + "\n")


def reports_of(result):
    """Return the reports of a trial in the order of their arrival."""
    file = Path(result.path).parent.parent / f"{result.metrics['trial_id']}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def fit(objective, rates, folder, *, scheduler=None, retries=0, base=SINE):
    """Run one trial for each learning rate; return their results in order.

    A scheduler decides in an order that does not depend on the workers.
    """
    journal = folder / "journal.jsonl"
    searcher = GivenRates(rates)
    if scheduler is not None:
        scheduler = resumable(
            scheduler, journal=journal, time_attr="epoch", ordered=True, concurrency=len(rates)
        )
        searcher = resumable(searcher, journal=journal)
    tuner = tune.Tuner(
        tune.with_resources(make_trainable(objective, SPACE, base, REPORTS), {"cpu": 1}),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            reuse_actors=True,
            num_samples=len(rates),
            search_alg=searcher,
            scheduler=scheduler or FIFOScheduler(),
        ),
        run_config=tune.RunConfig(
            name="study",
            storage_path=str(folder),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=retries),
            callbacks=[ReportLog(folder)],
        ),
    )
    return list(tuner.fit())


def train_locally(objective, schedule, folder):
    """Train in this process without a restart; return the losses and the checkpoint folder."""
    *_, last = objective.train(schedule, start=None, report_epochs=())
    folder.mkdir()
    last.save(folder)
    return last.epochs, folder


def losses_of(result):
    """Return the losses of all reports, as (epoch, train, val, chosen).

    A trial that was paused for another one reports some epochs again, with the same losses.
    """
    return sorted(
        {tuple(row) for report in reports_of(result) for row in json.loads(report["curve"])}
    )


def rows_of(epochs):
    return [(e.epoch, e.train_loss, e.val_loss, e.kept_loss) for e in epochs]


def load_state(objective, folder):
    return load_checkpoint(folder / "fold-0", subject=objective._checkpoint_subject()).state


def last_checkpoint(result):
    """Return the folder of the checkpoint of the last result, and the schedule in it.

    ``result.checkpoint`` is an older one if a scheduler stopped the trial while Tune saved it.
    """
    found = []
    for folder in sorted(Path(result.path).glob("checkpoint_*")):
        schedule, epoch = read_schedule(folder, where=str(folder))
        if epoch == result.metrics["epoch"]:
            found.append((folder, schedule))
    return found[-1]


def assert_same_end(objective, result, expected):
    folder, _ = last_checkpoint(result)
    assert_same_bits(load_state(objective, folder), load_state(objective, expected))


def test_trials_have_the_bits_of_uninterrupted_trainings(objective, tmp_path):
    sine_objective, rates = objective(), [0.03, 0.01, 1e-3, 1e-4]
    asha = ASHAScheduler(time_attr="epoch", max_t=6, grace_period=2, reduction_factor=2)
    found = fit(sine_objective, rates, tmp_path, scheduler=asha)

    assert [result.error for result in found] == [None] * 4
    reached = {result.metrics["epoch"] for result in found}
    assert 6 in reached
    assert reached & {2, 4}, "a trial must be stopped early for this test to be meaningful"
    for number, (rate, result) in enumerate(zip(rates, found, strict=True)):
        schedule = steps((0, {LR: rate, CLIP: 5.0, DROPOUT: 0.1}))
        epochs, end = train_locally(sine_objective, schedule, tmp_path / str(number))
        metrics = result.metrics
        assert losses_of(result) == rows_of(epochs[: metrics["epoch"]])
        assert metrics["loss"] == epochs[metrics["epoch"] - 1].kept_loss
        assert metrics["val_loss"] == epochs[metrics["epoch"] - 1].val_loss
        assert metrics["damaged_checkpoints"] == 0
        assert metrics["seconds"] > 0
        if metrics["epoch"] == 6:
            assert metrics["reason"] == "All 6 epochs were trained."
            assert_same_end(sine_objective, result, end)
        assert last_checkpoint(result)[1] == schedule


def test_trial_resumes_with_identical_bits_after_its_worker_was_killed(objective, tmp_path):
    marker = tmp_path / "died"
    epochs, end = train_locally(objective(), ONE, tmp_path / "whole")
    steps_an_epoch = load_state(objective(), end).steps // 6
    sine_objective = objective(kill_at_loss=3 * steps_an_epoch + 1, only_first_time=str(marker))

    (result,) = fit(sine_objective, [FAST[LR]], tmp_path, retries=1)

    assert marker.exists()
    assert result.error is None
    assert result.metrics["iterations_since_restore"] == 2  # epochs 4 and 6: it resumed
    assert losses_of(result) == rows_of(epochs)
    assert_same_end(sine_objective, result, end)


@pytest.mark.exhaustive
def test_checkpoint_damaged_before_resuming_is_trained_again(objective, tmp_path):
    sine_objective = objective()
    epochs, end = train_locally(sine_objective, ONE, tmp_path / "whole")
    killed = KilledAfterReport(
        objective=sine_objective,
        marker=tmp_path / "died",
        study=tmp_path / "study",
        damaged_files="epoch-*",
    )
    (result,) = fit(killed, [FAST[LR]], tmp_path, retries=1)

    assert result.error is None
    # The report before the kill is lost if the driver had not received it yet.
    assert [report["damaged_checkpoints"] for report in reports_of(result)][-2:] == [1, 0]
    assert losses_of(result) == rows_of(epochs)
    assert_same_end(sine_objective, result, end)


@pytest.mark.exhaustive
def test_damaged_schedule_is_reported_with_its_file(objective, tmp_path):
    killed = KilledAfterReport(
        objective=objective(),
        marker=tmp_path / "died",
        study=tmp_path / "study",
        damaged_files="schedule.json",
    )
    (result,) = fit(killed, [FAST[LR]], tmp_path, retries=1)

    error = trial_error(result.error, FAST)
    assert type(error) is IntegrityError
    assert str(tmp_path / "study") in error.what
    assert "schedule.json" in error.what
    assert "remove the study's folder" in error.fix


@pytest.mark.exhaustive
def test_permanent_errors_are_reported_and_transient_errors_raised(tmp_path):
    permanent = {0.02: ZeroDivisionError("the user's bug"), 0.03: ContractError("No.", fix="Look.")}
    transient = {
        0.04: MemoryError("no room for an array"),
        0.05: OSError(errno.ENOSPC, "No space left on device"),
        0.06: SettingsError("There is no GPU.", cause="Hidden.", fix="Show it."),
        0.07: OutOfMemory("Out of memory.", fix="Smaller batches."),
    }
    toy = FailingByRate(errors=permanent | transient, nan_above=0.5)
    good, nan, divided, rejected, *raised = fit(toy, [0.01, 0.9, *permanent, *transient], tmp_path)

    assert good.metrics["epoch"] == 27
    for result, reason in (
        (nan, "train_loss is nan at epoch 1."),
        (divided, "ZeroDivisionError: the user's bug (raised at "),
        (rejected, "No. Look."),
    ):
        assert result.error is None
        assert all(math.isnan(result.metrics[name]) for name in ("loss", "val_loss", "train_loss"))
        assert result.metrics["reason"].startswith(reason)
    # One more than the last report, so that a scheduler does not ignore it.
    assert [r.metrics["epoch"] for r in (nan, divided, rejected)] == [1, 3, 3]

    errors = [trial_error(r.error, {LR: rate}) for r, rate in zip(raised, transient, strict=True)]
    kinds = [TrainingFailed, StorageError, SettingsError, TrainingFailed]
    assert [type(error) for error in errors] == kinds
    assert all(error.fix for error in errors)
    memory, disk, device, out = errors
    assert f"The trial with {LR} 0.04" in memory.what
    assert "MemoryError: no room for an array (raised at " in memory.what
    assert "No room left to write" in disk.what
    assert (device.what, device.cause, device.fix) == ("There is no GPU.", "Hidden.", "Show it.")
    assert out.fix.startswith("Smaller batches. Run again")


@pytest.mark.exhaustive
def test_transient_error_that_disappears_does_not_fail_the_trial(tmp_path):
    """The error is raised only in the first attempt, after its first report."""
    toy = FailingByRate(errors={0.02: MemoryError("no room")}, fails_only_first=True)
    (result,) = fit(toy, [0.02], tmp_path, retries=1)

    assert result.error is None
    assert result.metrics["loss"] == min(curve((steps((0, {LR: 0.02, DROPOUT: 0.1}))), 27))


@pytest.mark.exhaustive
def test_error_of_user_code_fails_the_trial_with_its_file(objective, tmp_path):
    (result,) = fit(objective(raise_in_loss=True), [0.02], tmp_path)

    reason = result.metrics["reason"]
    assert "the user's bug" in reason
    assert "synthetic.py" in reason
    assert result.metrics["epoch"] == 1


def test_population_trials_reproduce_the_schedules_in_their_checkpoints(objective, tmp_path):
    patient = SINE.training.model_copy(update={"patience_epochs": 6})
    base = SINE.model_copy(update={"training": patient})
    sine_objective = objective(base=base)
    pbt = PopulationBasedTraining(
        time_attr="epoch",
        perturbation_interval=2,
        hyperparam_mutations={LR: tune.loguniform(1e-4, 1e-1)},
    )
    found = fit(sine_objective, [0.03, 1e-3, 1e-4], tmp_path, scheduler=pbt, base=base)

    schedules = []
    for number, result in enumerate(found):
        assert result.error is None
        assert result.metrics["epoch"] == 6
        _, schedule = last_checkpoint(result)
        _, end = train_locally(sine_objective, schedule, tmp_path / str(number))
        assert_same_end(sine_objective, result, end)
        schedules.append(schedule)
    assert max(map(len, schedules)) > 1, "no trial copied another one"
    assert len({schedule[0].params[LR] for schedule in schedules}) < 3


def test_pickled_trainable_does_not_contain_the_data(objective):
    sine_objective = objective()
    sine_objective = dataclasses.replace(
        sine_objective, frame=pd.concat([sine_objective.frame] * 500)
    )

    assert len(cloudpickle.dumps(sine_objective)) > 2_000_000
    assert len(cloudpickle.dumps(make_trainable(sine_objective, SPACE, SINE, REPORTS))) < 20_000
