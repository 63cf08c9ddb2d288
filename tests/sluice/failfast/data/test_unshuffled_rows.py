"""Ordered independent rows are reported; shuffled rows and declared time orders are not."""

import numpy as np
import pandas as pd
import pytest

from sluice.data.hash_order import in_hash_order
from sluice.failfast.data.unshuffled_rows import find_unshuffled_rows
from tests.support.plain import Plain


class Independent(Plain):
    horizon_rows = 0


class OwnFolds(Independent):
    def plan_folds(self, frame):
        return super().plan_folds(frame)


def make_table(kind: str, rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    values = {
        "classes": np.arange(rows) * 3 // rows,
        "trend": np.arange(rows) / 100 + rng.normal(size=rows),
        "groups": np.repeat(rng.normal(size=rows // 4), 4) + 0.3 * rng.normal(size=rows),
        "constant": np.ones(rows),
        "random": rng.normal(size=rows),
    }
    return pd.DataFrame({"x": rng.normal(size=rows), "y": values[kind]})


@pytest.mark.parametrize("kind", ["classes", "trend", "groups"])
def test_ordered_independent_rows_warn(kind):
    finding = find_unshuffled_rows(Independent(), make_table(kind))

    assert finding is not None
    assert finding.outcome == "warn"
    assert finding.numbers["neighbour_correlation"] > 0.25
    assert "in_hash_order" in finding.response[1]


@pytest.mark.parametrize("kind", ["classes", "trend", "groups"])
def test_the_hash_order_of_the_same_rows_is_not_reported(kind):
    assert (
        find_unshuffled_rows(Independent(), in_hash_order(make_table(kind), ["x"], name="k"))
        is None
    )


def test_random_targets_are_not_reported_in_a_thousand_tables():
    rng = np.random.default_rng(0)
    frames = (pd.DataFrame({"y": rng.integers(0, 2, 60)}) for _ in range(1_000))

    assert all(find_unshuffled_rows(Independent(), frame) is None for frame in frames)


@pytest.mark.parametrize(
    ("workload", "frame"),
    [
        (Plain(), make_table("trend")),  # a time order is declared
        (OwnFolds(), make_table("trend")),
        (Independent(), make_table("constant")),
        (Independent(), make_table("trend").head(20)),
        (Independent(), make_table("trend").rename(columns={"y": "other"})),
        (Independent(), make_table("trend").astype({"y": "str"})),
    ],
)
def test_other_tables_are_not_checked(workload, frame):
    assert find_unshuffled_rows(workload, frame) is None
