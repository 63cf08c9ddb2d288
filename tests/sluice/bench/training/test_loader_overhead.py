"""The trainer compared with a loop over torch's DataLoader: equal bits, and relative speed."""

import pytest

from sluice.base.errors import ContractError
from sluice.base.seeding import derive_seed
from sluice.bench.training import loader_overhead
from sluice.bench.training.loader_overhead import measure_loaders

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # more processes than this machine has cores
)


def measure(tmp_path, **options):
    defaults = {"num_rows": 150, "num_epochs": 2, "num_rounds": 1, "worker_counts": (0,)}
    return measure_loaders(**{**defaults, **options}, folder=tmp_path)


def test_every_source_is_measured_with_the_given_clock(tmp_path):
    """The clock ticks once per call, so every training takes one tick."""
    ticks = iter(range(10_000))
    found = measure(tmp_path, num_rounds=2, clock=lambda: float(next(ticks)))

    assert [speed.source for speed in found.loaders] == ["table", "tokens", "images"]
    assert {speed.ratio for speed in found.loaders} == {1.0}
    assert {speed.trainer_rows_per_s for speed in found.loaders} == {300.0}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_loops_with_loader_processes_have_equal_weights(tmp_path):
    found = measure(tmp_path, worker_counts=(2,))

    assert [speed.num_workers for speed in found.loaders] == [2, 2, 2]
    assert min(speed.ratio for speed in found.loaders) > 0


def test_different_order_of_rows_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(
        loader_overhead, "derive_seed", lambda base, stage: derive_seed(base + 1, stage)
    )
    with pytest.raises(ContractError, match="must end with equal weights on table"):
        measure(tmp_path)
