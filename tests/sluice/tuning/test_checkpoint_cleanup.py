"""Checkpoints that no trial can resume from or copy are removed while a study runs."""

import pytest

from sluice.tuning.checkpoint_cleanup import CheckpointCleanup
from tests.sluice.tuning.toy_space import decisions, search, settings
from tests.support.simulated_tune import simulate


def make_cleaning_run():
    """Return a function that runs a study in which only the cleanup removes checkpoints."""

    def run(plan, listener):
        with CheckpointCleanup(None) as cleanup:

            def listen(study, event):
                listener(study, event)
                cleanup(study, event)

            return simulate(plan, listen, keeps_all=True)

    return run


@pytest.mark.parametrize(("scheduler", "num_needed"), [("asha", 1), ("pbt", 4), ("none", 1)])
def test_each_trial_keeps_its_last_checkpoint_and_those_that_can_be_copied(
    scheduler, num_needed, tmp_path
):
    search_settings = settings(8, scheduler)
    expected = search(tmp_path / "whole", search_settings)
    result = search(tmp_path / "cleaned", search_settings, run=make_cleaning_run())

    left = [path.name.split("-")[0] for path in (tmp_path / "cleaned" / "checkpoints").iterdir()]
    assert decisions(result) == decisions(expected)
    assert {int(name) for name in left} == set(range(8))
    assert max(left.count(name) for name in left) <= num_needed
    assert len(left) <= 16  # the population of 8 wrote 48
