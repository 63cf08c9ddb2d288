"""TUNE-3: what may be gone tomorrow is not written down; what follows from the values is."""

import errno
from dataclasses import dataclass

import pytest
import torch

from sluice.errors import (
    ContractError,
    IntegrityError,
    RankLost,
    SettingsError,
    SluiceError,
    SourceError,
    StorageError,
    TrainingFailed,
)
from sluice.tuning.accidents import is_accident
from sluice.tuning.records import Segment, Step
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.toy_search import LR, Toy

OWN = settings(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(Toy):
    error: Exception
    at: tuple[int, int]

    def run(self, segment, folder, start):
        if segment.key == self.at:
            raise self.error
        return Toy.run(self, segment, folder, start)


def from_cause(error, cause):
    error.__cause__ = cause
    return error


PASSING = {
    "memory": MemoryError("no room for an array"),
    "torch memory": RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    "GPU memory": torch.OutOfMemoryError("CUDA out of memory."),
    "GPU": torch.AcceleratorError("CUDA error: uncorrectable ECC error"),
    "disk": OSError(errno.EIO, "Input/output error"),
    "device": SettingsError("'cuda' is asked for and there is none.", fix="Take another one."),
    "damage": IntegrityError("The bytes do not match.", fix="Restore them."),
    "source": SourceError("It does not answer.", fix="Wait."),
    "rank": RankLost("Another process is gone.", fix="Run again."),
    "wrapped": from_cause(ContractError("The loss raised.", fix="Look."), OSError(5, "EIO")),
}
LASTING = {
    "user's": ZeroDivisionError("the user's bug"),
    "diverged": TrainingFailed("The loss is inf.", fix="Lower the rate."),
    "contract": ContractError("The loss raised KeyError.", fix="Correct it."),
    "chained": from_cause(ValueError("no such column"), KeyError("x")),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return decisions(search(tmp_path_factory.mktemp("whole"), OWN))


@pytest.mark.parametrize("name", PASSING)
def test_an_accident_ends_the_search_and_the_trial_is_tried_anew(name, expected, tmp_path):
    error = PASSING[name]
    with pytest.raises(SluiceError) as caught:
        search(tmp_path, OWN, toy=Failing(error=error, at=(1, 3)))
    assert caught.value.fix
    if not isinstance(error, SluiceError):
        said = str(caught.value)
        assert f"Trial 1 ({LR} " in said
        assert f"{type(error).__name__}: " in said
        assert "(raised at " in said
        assert "Run again: nothing that was finished is lost" in said

    assert decisions(search(tmp_path, OWN)) == expected


@pytest.mark.parametrize("name", LASTING)
def test_what_follows_from_values_and_code_is_that_trials_end(name, tmp_path):
    result = search(tmp_path, OWN, toy=Failing(error=LASTING[name], at=(1, 3)))

    assert [t.id for t in result.trials if t.state == "failed"] == [1]
    assert str(LASTING[name]) in result.trials[1].reason
    assert decisions(search(tmp_path, OWN)) == decisions(result)


@pytest.mark.parametrize("kind", [ValueError, lambda text: ContractError(text, fix=text)])
def test_a_message_that_cannot_be_written_is_spelled_out(kind, tmp_path):
    result = search(tmp_path, OWN, toy=Failing(error=kind("no file a\udcff.csv"), at=(1, 3)))

    assert r"no file a\udcff.csv" in result.trials[1].reason
    assert decisions(search(tmp_path, OWN)) == decisions(result)


def test_a_full_disk_is_told_as_such(tmp_path):
    full = Failing(error=OSError(errno.ENOSPC, "No space left on device"), at=(0, 3))
    with pytest.raises(StorageError, match="No room left to write"):
        search(tmp_path, OWN, toy=full)


def test_an_accident_inside_a_training_is_no_failed_trial(objective, tmp_path, monkeypatch):
    def lost(*_args, **_options):
        raise from_cause(TrainingFailed("A loader ended.", fix="Run again."), OSError(5, "EIO"))

    monkeypatch.setattr("sluice.tuning.objective.train", lost)
    schedule = (Step(from_epoch=0, params={LR: 0.01}),)
    with pytest.raises(TrainingFailed, match="A loader ended"):
        objective().run(
            Segment(trial=0, start=None, until=1, schedule=schedule), tmp_path / "a", None
        )


def test_values_that_the_settings_refuse_together_end_their_trial(objective, tmp_path):
    schedule = (Step(from_epoch=0, params={"model.architecture": "transformer"}),)
    found = objective().run(
        Segment(trial=0, start=None, until=1, schedule=schedule), tmp_path / "a", None
    )
    assert found.status == "failed"
    assert "hidden" in found.reason


def test_interrupts_are_left_to_whoever_watches():
    assert not is_accident(KeyboardInterrupt())
