"""Overlap of two evaluation windows, estimated from sketches of their rows (STAT-3)."""

import numpy as np
import pytest

from sluice.verdicts.row_sketch import NUM_HASHES, RowSketch

DAYS = np.datetime_as_string(np.arange("2010-01-01", "2030-01-01", dtype="datetime64[D]"))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75, 0.99, 1.0])
def test_estimated_share_of_common_rows_is_accurate(share):
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(60):
        start, size = int(rng.integers(0, 2000)), int(rng.integers(500, 2500))
        other_start = start + round(size * (1 - share))
        window, other = DAYS[start : start + size], DAYS[other_start : other_start + size]
        errors.append(RowSketch.of(other).share_in(RowSketch.of(window)) - share)

    assert abs(np.mean(errors)) < 0.03
    assert np.std(errors) < 0.07


def test_window_extended_by_a_day_has_high_overlap():
    longer = RowSketch.of(DAYS[:3001])

    assert longer.share_in(RowSketch.of(DAYS[:3000])) > 0.9
    assert RowSketch.of(DAYS[:3000]).share_in(longer) > 0.9


def test_small_windows_are_compared_exactly_without_order_and_duplicates():
    window = RowSketch.of(np.array(["c", "a", "b", "a"]))

    assert window == RowSketch.of(np.array(["a", "b", "c"]))
    assert (window.num_rows, len(window.hashes)) == (3, 3)
    assert window.share_in(RowSketch.of(np.array(["a", "b", "x", "y"]))) == pytest.approx(2 / 3)
    assert window.share_in(RowSketch.of(np.array(["x"]))) == 0.0


def test_sketch_has_bounded_size_and_is_unchanged_by_serialization():
    sketch = RowSketch.of(DAYS)

    assert len(sketch.hashes) == NUM_HASHES
    assert RowSketch.model_validate_json(sketch.model_dump_json()) == sketch


@pytest.mark.parametrize("factor", [2, 10, 100])
def test_subset_of_a_window_has_full_overlap(factor):
    """A part of an evaluated window does not count as a new window (STAT-3)."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        all_rows = rng.integers(0, 2**40, 300 * factor).astype(str)
        assert RowSketch.of(all_rows[:300]).share_in(RowSketch.of(all_rows)) == 1.0


def test_share_is_1_without_comparable_hashes():
    few = RowSketch(num_rows=300, hashes=(10, 20))
    many = RowSketch(num_rows=300_000, hashes=(1, 2))

    assert few.share_in(many) == 1.0
