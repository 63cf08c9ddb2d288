"""Warnings in the summary of a study."""

import pytest

from sluice.training.settings import TrainSettings
from sluice.tuning.search import run_search
from sluice.tuning.spaces import TrialSettings
from sluice.tuning.study_summary import summarize_study
from tests.sluice.tuning.toy_space import HERE, ignore, settings, space
from tests.support.simulated_tune import simulate
from tests.support.toy_search import Toy

BATCH = "training.batch_rows"


@pytest.mark.parametrize(
    ("batch_rows", "num_trials", "warning"),
    [
        (64, 4, None),
        (
            100,
            4,
            "No trial has the settings of the pipeline file, so the loss with these settings may "
            "be lower than the winner's. Outside the space: training.batch_rows 100 (space: 8..64, "
            "powers of two).",
        ),
        (100, 2, None),  # with two leading parameters it is not searched
    ],
)
def test_file_settings_outside_the_space_are_reported(batch_rows, num_trials, warning, tmp_path):
    base = TrialSettings(training=TrainSettings(max_epochs=9, batch_rows=batch_rows))
    search_settings = settings(num_trials, leading_parameters=2 if num_trials == 2 else 3)
    result = run_search(
        Toy(),
        space(),
        base,
        search_settings,
        folder=tmp_path,
        on_report=ignore,
        compute=HERE,
        run=simulate,
    )
    warnings = summarize_study(result, space(), base, seed=0).warnings

    assert [line for line in warnings if "file" in line] == ([warning] if warning else [])
