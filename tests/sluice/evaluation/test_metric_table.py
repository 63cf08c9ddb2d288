"""Tables with the metrics of each seed and fold."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from sluice.evaluation.metric_table import MetricTable, folds_component
from sluice.evaluation.variance import UNKNOWN_VARIANCE


def make_metrics(**values) -> MetricTable:
    return MetricTable(
        subject="candidate", window="window", seeds=(3, 5), fold_rows=(100, 300), values=values
    )


def test_means_are_weighted_by_rows_and_averaged_over_seeds():
    table = make_metrics(f1=((0.4, 0.8), (0.6, 0.6)))

    assert table.by_seed == ({"f1": pytest.approx(0.7)}, {"f1": pytest.approx(0.6)})
    assert table.means == {"f1": pytest.approx(0.65)}
    assert table.seeds_component("f1").variance == pytest.approx(0.1**2 / 2 / 2)


def test_a_non_finite_value_makes_the_mean_nan_and_is_stored():
    table = make_metrics(f1=((0.4, math.nan), (0.6, 0.6)), mae=((1.0, 1.0), (1.0, math.inf)))

    loaded = MetricTable.model_validate_json(table.model_dump_json())

    assert math.isnan(loaded.means["f1"])
    assert np.isnan(loaded.values_of("mae")).sum() == 1
    assert loaded.values_of("other") is None
    assert loaded.seeds_component("other") == UNKNOWN_VARIANCE


def test_a_metric_without_values_of_a_seed_or_fold_is_rejected():
    with pytest.raises(ValidationError, match=r"shape \(seeds, folds\) = \(2, 2\), got 1 seed"):
        make_metrics(f1=((0.4, 0.8),))
    with pytest.raises(ValidationError, match="metric 'f1'"):
        make_metrics(f1=((0.4, 0.8), (0.6,)))


def test_equal_folds_give_the_variance_of_a_plain_mean():
    gain_F = np.array([0.1, 0.4, -0.2, 0.3])

    component = folds_component(gain_F, np.full(4, 0.25))

    assert component.variance == pytest.approx(gain_F.var(ddof=1) / 4)
    assert component.degrees_of_freedom == 3
    assert folds_component(gain_F[:1], np.ones(1)) == UNKNOWN_VARIANCE
