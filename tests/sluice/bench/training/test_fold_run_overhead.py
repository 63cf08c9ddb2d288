"""The measurement of fold run throughput, with real fold runs in their own processes."""

import itertools

import pytest

from sluice.base.errors import ContractError, TrainingFailed
from sluice.bench.training import fold_run_overhead
from sluice.bench.training.fold_run_overhead import measure_fold_runs


@pytest.fixture
def measure(specs, tmp_path):
    def run(*, max_epochs=3, seeds=(0,), **options):
        options = {"num_workers": 2, "num_resumes": 1} | options
        fold_runs = specs(seeds=seeds, max_epochs=max_epochs)
        return measure_fold_runs(fold_runs, folder=tmp_path / "units", **options)

    return run


@pytest.mark.slow
@pytest.mark.exhaustive
def test_fold_runs_are_measured_and_the_folder_is_empty_afterwards(measure, tmp_path):
    """Each call of the clock adds 1 s; the resume time is real, as another process measures it."""
    (tmp_path / "units").mkdir()
    clock = itertools.count(step=1.0)
    speed = measure(seeds=(0, 1), clock=lambda: next(clock))

    assert (speed.num_fold_runs, speed.num_workers, speed.speedup) == (2, 2, 1.0)
    assert speed.sequential_per_s == speed.parallel_per_s == 2.0
    assert 0 < speed.resume_seconds < 60
    assert list((tmp_path / "units").iterdir()) == []


def test_fold_run_of_one_epoch_is_rejected(measure):
    with pytest.raises(ContractError, match="must write a checkpoint before its last epoch"):
        measure(max_epochs=1)


def test_failed_resume_reports_the_error_of_the_process(measure, monkeypatch):
    monkeypatch.setattr(fold_run_overhead, "_RESUME_CODE", "raise SystemExit('no {path[0]}'[:2])")
    with pytest.raises(TrainingFailed, match="ended with status 1: no"):
        measure()
