"""The cost of units: measured on real ones, in processes of their own."""

import itertools

import pytest

from sluice.base.errors import ContractError, TrainingFailed
from sluice.bench.training import fold_run_overhead
from sluice.bench.training.fold_run_overhead import measure_fold_runs


@pytest.fixture
def measure(specs, tmp_path):
    def run(*, max_epochs=3, seeds=(0,), **options):
        options = {"workers": 2, "repeats": 1} | options
        units = specs(seeds=seeds, max_epochs=max_epochs)
        return measure_fold_runs(units, folder=tmp_path / "units", **options)

    return run


@pytest.mark.slow
@pytest.mark.exhaustive
def test_units_are_measured_and_nothing_is_left(measure, tmp_path):
    """A clock that gains a second a call: the real seconds are those of the other process."""
    (tmp_path / "units").mkdir()
    clock = itertools.count(step=1.0)
    speed = measure(seeds=(0, 1), clock=lambda: next(clock))

    assert (speed.num_fold_runs, speed.workers, speed.speedup) == (2, 2, 1.0)
    assert speed.alone_per_s == speed.together_per_s == 2.0
    assert 0 < speed.resume_seconds < 60
    assert list((tmp_path / "units").iterdir()) == []


def test_a_unit_that_is_over_at_once_is_refused(measure):
    with pytest.raises(ContractError, match="must write a checkpoint before its last epoch"):
        measure(max_epochs=1)


def test_a_process_that_cannot_go_on_says_why(measure, monkeypatch):
    monkeypatch.setattr(fold_run_overhead, "_RESUME_CODE", "raise SystemExit('no {path[0]}'[:2])")
    with pytest.raises(TrainingFailed, match="ended with status 1: no"):
        measure()
