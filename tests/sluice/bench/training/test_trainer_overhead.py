"""The trainer compared with a minimal training loop: equal bits, and relative speed."""

import pytest

from sluice.base.errors import ContractError
from sluice.base.seeding import derive_seed
from sluice.bench.training import trainer_overhead
from sluice.bench.training.trainer_overhead import measure_trainer
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from tests.support.synthetic import SineWorkload


@pytest.fixture
def measure(tmp_path):
    workload = SineWorkload()
    frame = workload.compute_features(workload.load_rows())
    fold = workload.plan_folds(frame)[0]

    def run(**options):
        return measure_trainer(
            workload,
            ModelSettings(hidden=8, layers=2, dropout=0.2, **options.pop("model", {})),
            TrainSettings(max_epochs=3, batch_rows=32, **options.pop("training", {})),
            workload.examples(frame, fold.train),
            workload.examples(frame, fold.val),
            seed=0,
            folder=tmp_path,
            **({"num_rounds": 2} | options),
        )

    return run


@pytest.mark.parametrize("architecture", ["gru", "lstm", "slstm", "transformer", "linear"])
def test_trainer_has_the_weights_of_the_minimal_loop(measure, architecture):
    """The measurement raises an error unless the weights of both loops are equal to the bit."""
    speed = measure(model={"architecture": architecture}, num_rounds=1)

    assert speed.ratio > 0


def test_speeds_are_measured_with_the_given_clock(measure):
    """The clock ticks once per call, so every training and every checkpoint takes one tick."""
    ticks = iter(range(10_000))
    speed = measure(
        clock=lambda: float(next(ticks)), num_rounds=3, training={"checkpoint_every_epochs": 2}
    )

    assert (speed.ratio, speed.num_rounds) == (1.0, 3)
    assert speed.trainer_rows_per_s == speed.loop_rows_per_s == 3 * speed.num_rows
    assert speed.epoch_seconds == pytest.approx(1 / 3)
    assert (speed.checkpoint_seconds, speed.checkpoint_load_seconds) == (1.0, 1.0)
    # The second of three epochs is written, between two of the four ticks.
    assert speed.checkpoint_share == pytest.approx(1 / 3)


def test_folder_is_empty_after_the_measurement(measure, tmp_path):
    measure(num_rounds=1)

    assert list(tmp_path.iterdir()) == []


def test_loops_with_different_weights_are_an_error(measure):
    with pytest.raises(ContractError, match="must end with equal weights"):
        measure(training={"micro_batch_rows": 10})


def test_different_random_numbers_are_an_error(measure, monkeypatch):
    """The minimal loop uses another seed for dropout and order."""
    monkeypatch.setattr(
        trainer_overhead, "derive_seed", lambda base, stage: derive_seed(base + 1, stage)
    )
    with pytest.raises(ContractError, match="must end with equal weights"):
        measure()
