"""The speed of a study compared with the same study in Ray Tune's own tuner."""

import itertools

import pytest

from sluice.bench.search.study_speed import measure_study
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.spaces import TrialSettings

TINY = TrialSettings(
    model=ModelSettings(architecture="linear"), training=TrainSettings(max_epochs=2, batch_rows=64)
)


@pytest.mark.exhaustive
def test_both_engines_train_the_same_trials_and_leave_nothing_running(objective, tmp_path, capfd):
    """The best losses are equal to the bit. Each call of the fake clock advances it by 3 s."""
    import ray

    clock = itertools.count(step=3.0)
    speed = measure_study(
        objective(base=TINY),
        num_trials=2,
        grace_epochs=1,
        folder=tmp_path / "bench",
        clock=lambda: next(clock),
    )

    assert speed.best_loss == speed.tuner_best_loss
    assert (speed.seconds, speed.tuner_seconds, speed.ratio) == (3.0, 3.0, 1.0)
    assert 2 <= speed.num_epochs <= 4
    assert not ray.is_initialized()
    assert {path.name for path in (tmp_path / "bench").iterdir()} == {"study", "tuner"}
    assert capfd.readouterr().out == ""  # stdout is reserved for --json
