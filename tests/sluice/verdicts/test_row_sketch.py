"""STAT-3: how much two windows share, known from a sketch of each."""

import numpy as np
import pytest

from sluice.verdicts.row_sketch import HASHES, RowSketch

DAYS = np.datetime_as_string(np.arange("2010-01-01", "2030-01-01", dtype="datetime64[D]"))


@pytest.mark.parametrize("kept", [0.0, 0.25, 0.5, 0.75, 0.99, 1.0])
def test_the_share_of_common_rows_is_estimated(kept):
    rng = np.random.default_rng(3)
    misses = []
    for _ in range(60):
        start, size = int(rng.integers(0, 2000)), int(rng.integers(500, 2500))
        moved = start + round(size * (1 - kept))
        window, other = DAYS[start : start + size], DAYS[moved : moved + size]
        misses.append(RowSketch.of(other).share_in(RowSketch.of(window)) - kept)

    assert abs(np.mean(misses)) < 0.03
    assert np.std(misses) < 0.07


def test_a_window_that_grows_by_a_day_is_the_same_window():
    grown = RowSketch.of(DAYS[:3001])

    assert grown.share_in(RowSketch.of(DAYS[:3000])) > 0.9
    assert RowSketch.of(DAYS[:3000]).share_in(grown) > 0.9


def test_few_rows_are_compared_exactly_regardless_of_order_and_duplicates():
    window = RowSketch.of(np.array(["c", "a", "b", "a"]))

    assert window == RowSketch.of(np.array(["a", "b", "c"]))
    assert (window.num_rows, len(window.hashes)) == (3, 3)
    assert window.share_in(RowSketch.of(np.array(["a", "b", "x", "y"]))) == pytest.approx(2 / 3)
    assert window.share_in(RowSketch.of(np.array(["x"]))) == 0.0


def test_a_sketch_stays_small_and_survives_json():
    sketch = RowSketch.of(DAYS)

    assert len(sketch.hashes) == HASHES
    assert RowSketch.model_validate_json(sketch.model_dump_json()) == sketch


@pytest.mark.parametrize("times", [2, 10, 100])
def test_a_subset_of_a_window_has_full_overlap_with_it(times):
    """STAT-3: a window cannot be asked anew by cutting it out of one that was asked before."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        whole = rng.integers(0, 2**40, 300 * times).astype(str)
        assert RowSketch.of(whole[:300]).share_in(RowSketch.of(whole)) == 1.0


def test_without_comparable_hashes_the_share_is_1():
    few = RowSketch(num_rows=300, hashes=(10, 20))
    many = RowSketch(num_rows=300_000, hashes=(1, 2))

    assert few.share_in(many) == 1.0
