"""TUNE-3: a transient error is raised and not recorded; a permanent error fails the trial."""

import errno
import pickle

import pytest
import torch

from sluice.base.errors import (
    ContractError,
    IntegrityError,
    OutOfMemory,
    RankLost,
    SettingsError,
    SluiceError,
    SourceError,
    StorageError,
    TrainingFailed,
    TrialFailed,
)
from sluice.tuning.records import ScheduleStep
from sluice.tuning.retry_policy import failure_reason, is_transient
from sluice.tuning.trainable import trial_error
from tests.sluice.tuning.conftest import SINE
from tests.support.toy_search import LR


def chain(error, cause):
    error.__cause__ = cause
    return error


TRANSIENT = {
    "memory": MemoryError("no room for an array"),
    "torch memory": RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "GPU memory": torch.OutOfMemoryError("CUDA out of memory."),
    "GPU": torch.AcceleratorError("CUDA error: uncorrectable ECC error"),
    "disk": OSError(errno.EIO, "Input/output error"),
    "device": SettingsError("'cuda' is selected and not available.", fix="Take another one."),
    "damage": IntegrityError("The bytes do not match.", fix="Restore them."),
    "source": SourceError("It does not answer.", fix="Wait."),
    "rank": RankLost("Another process is gone.", fix="Run again."),
    "wrapped": chain(ContractError("The loss raised.", fix="Look."), OSError(5, "EIO")),
}
PERMANENT = {
    "user's": ZeroDivisionError("the user's bug"),
    "diverged": TrainingFailed("The loss is inf.", fix="Lower the rate."),
    "contract": ContractError("The loss raised KeyError.", fix="Correct it."),
    "chained": chain(ValueError("no such column"), KeyError("x")),
}


VALUES = {LR: 0.02, "model.dropout": 0.1}


def raise_and_catch(error):
    """Raise and catch the error, so that it has a traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("name", TRANSIENT)
def test_transient_error_is_raised_with_a_fix(name):
    error = raise_and_catch(TRANSIENT[name])
    with pytest.raises(SluiceError) as caught:
        failure_reason(error, VALUES)
    assert caught.value.fix
    if isinstance(error, SluiceError):
        assert caught.value is error
        return
    assert f"The trial with {LR} 0.02, model.dropout 0.1 could not be trained" in caught.value.what
    assert f"{type(error).__name__}: {error}" in caught.value.what
    assert "(raised at " in caught.value.what
    assert "Run again: finished work is kept" in caught.value.fix


@pytest.mark.parametrize("name", TRANSIENT)
def test_transient_error_can_be_pickled_to_the_driver(name):
    with pytest.raises(SluiceError) as caught:
        failure_reason(raise_and_catch(TRANSIENT[name]), VALUES)
    arrived = pickle.loads(pickle.dumps(caught.value))

    assert type(arrived) is type(caught.value)
    assert (arrived.what, arrived.cause, arrived.fix) == (
        caught.value.what,
        caught.value.cause,
        caught.value.fix,
    )


@pytest.mark.parametrize("name", PERMANENT)
def test_permanent_error_is_the_reason_of_a_failed_trial(name):
    assert str(PERMANENT[name]) in failure_reason(raise_and_catch(PERMANENT[name]), VALUES)


@pytest.mark.parametrize("kind", [ValueError, lambda text: ContractError(text, fix=text)])
def test_message_with_invalid_unicode_is_escaped(kind):
    assert r"no file a\udcff.csv" in failure_reason(
        raise_and_catch(kind("no file a\udcff.csv")), VALUES
    )


def test_out_of_memory_is_reported_with_settings_to_change():
    error = OutOfMemory("Out of memory in a training step.", fix="Try a smaller batch.")
    with pytest.raises(TrainingFailed, match=f"{LR} 0.02") as caught:
        failure_reason(raise_and_catch(error), VALUES)
    assert caught.value.fix.startswith("Try a smaller batch. Run again: ")

    with pytest.raises(TrainingFailed) as caught:
        failure_reason(raise_and_catch(TRANSIENT["torch memory"]), VALUES)
    assert "training.micro_batch_rows" in caught.value.fix
    assert "memory" in caught.value.cause


def test_full_disk_is_reported():
    with pytest.raises(StorageError, match="No room left to write /data/part"):
        failure_reason(OSError(errno.ENOSPC, "No space left on device", "/data/part"), VALUES)


def test_transient_error_during_training_does_not_fail_the_trial(objective, monkeypatch):
    def raise_transient_error(*_args, **_options):
        raise chain(TrainingFailed("A loader ended.", fix="Run again."), OSError(5, "EIO"))

    monkeypatch.setattr("sluice.tuning.fold_training.train", raise_transient_error)
    schedule = (ScheduleStep(from_epoch=0, params={LR: 0.01}),)
    with pytest.raises(TrainingFailed, match=r"^A loader ended") as caught:
        next(objective().train(schedule, start=None, report_epochs=(1,)))
    assert is_transient(caught.value)


def test_invalid_combination_of_values_fails_the_trial(objective):
    schedule = (ScheduleStep(from_epoch=0, params={"model.architecture": "transformer"}),)
    with pytest.raises(TrainingFailed, match="hidden") as caught:
        next(objective().train(schedule, start=None, report_epochs=(1,)))
    assert not is_transient(caught.value)


def test_missing_device_is_transient(objective, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    on_gpu = SINE.training.model_copy(update={"device": "cuda"})
    gpu_objective = objective(base=SINE.model_copy(update={"training": on_gpu}))
    with pytest.raises(SettingsError, match="'cuda'") as caught:
        next(
            gpu_objective.train(
                (ScheduleStep(from_epoch=0, params={LR: 0.01}),), start=None, report_epochs=(1,)
            )
        )
    assert is_transient(caught.value)


def test_interrupts_are_passed_on():
    assert not is_transient(KeyboardInterrupt())


def test_unknown_trial_error_is_not_reported_as_a_lost_worker():
    failed = TrialFailed(
        "Trial 3 failed, and Tune does not retry it: KeyError: 'x'",
        fix="Fix the cause.",
        number=3,
        config={},
        error=None,
    )

    error = trial_error(failed, {LR: 0.1})

    assert "could not be trained: Trial 3 failed" in error.what
    assert "worker on Ray was lost" not in str(error)
