"""Metrics for each seed and fold."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from sluice.evaluation.metric_table import MetricTable, folds_component
from sluice.evaluation.variance import UNKNOWN_VARIANCE


def metrics(**values) -> MetricTable:
    return MetricTable(
        subject="candidate", window="window", seeds=(3, 5), fold_rows=(100, 300), values=values
    )


def test_means_are_by_rows_then_over_seeds():
    table = metrics(f1=((0.4, 0.8), (0.6, 0.6)))

    assert table.by_seed == ({"f1": pytest.approx(0.7)}, {"f1": pytest.approx(0.6)})
    assert table.means == {"f1": pytest.approx(0.65)}
    assert table.seeds_component("f1").variance == pytest.approx(0.1**2 / 2 / 2)


def test_one_absent_number_makes_the_mean_unknown_and_survives_storage():
    table = metrics(f1=((0.4, math.nan), (0.6, 0.6)), mae=((1.0, 1.0), (1.0, math.inf)))

    again = MetricTable.model_validate_json(table.model_dump_json())

    assert math.isnan(again.means["f1"])
    assert np.isnan(again.values_of("mae")).sum() == 1
    assert again.values_of("other") is None
    assert again.seeds_component("other") == UNKNOWN_VARIANCE


def test_a_metric_that_lacks_a_seed_or_fold_is_refused():
    with pytest.raises(ValidationError, match=r"metric 'f1' must be \(seeds, folds\) = \(2, 2\)"):
        metrics(f1=((0.4, 0.8),))
    with pytest.raises(ValidationError, match="metric 'f1'"):
        metrics(f1=((0.4, 0.8), (0.6,)))


def test_equal_folds_give_the_variance_of_a_plain_mean():
    gain_F = np.array([0.1, 0.4, -0.2, 0.3])

    part = folds_component(gain_F, np.full(4, 0.25))

    assert part.variance == pytest.approx(gain_F.var(ddof=1) / 4)
    assert part.degrees_of_freedom == 3
    assert folds_component(gain_F[:1], np.ones(1)) == UNKNOWN_VARIANCE
