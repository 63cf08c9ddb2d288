"""Rates, scores and scratch folders, which all benchmarks with planted faults share."""

from dataclasses import dataclass

import pytest
from pydantic import ValidationError
from scipy.stats import binomtest

from sluice.bench.planted.lines import result_line
from sluice.bench.planted.rate import Rate
from sluice.bench.planted.score import rate_of, score_planted
from sluice.bench.planted.scratch import scratch_folder


@dataclass(frozen=True)
class Faulty:
    is_caught: bool
    is_first: bool


@dataclass(frozen=True)
class Healthy:
    has_error: bool = False
    has_warning: bool = False


def test_a_rate_has_its_exact_interval():
    """The upper bound of 0 of n is 1 - 0.025 ** (1 / n), and the interval is symmetric."""
    none, every = Rate(count=0, total=60), Rate(count=60, total=60)
    half_low, half_high = Rate(count=30, total=60).exact_interval

    assert (none.exact_interval[0], every.exact_interval[1]) == (0.0, 1.0)
    assert none.exact_interval[1] == pytest.approx(1 - 0.025 ** (1 / 60))
    assert every.exact_interval[0] == pytest.approx(1 - none.exact_interval[1])
    assert half_low == pytest.approx(1 - half_high)


@pytest.mark.parametrize("count", [0, 1, 7, 39, 40])
def test_the_intervals_of_a_rate_are_those_of_scipy_stats(count):
    rate = Rate(count=count, total=40)

    for method, interval in (("exact", rate.exact_interval), ("wilson", rate.interval)):
        expected = binomtest(count, 40).proportion_ci(0.95, method=method)
        assert interval == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_rate_with_total_zero_is_rejected():
    with pytest.raises(ValidationError, match="total"):
        Rate(count=0, total=0)


def test_a_rate_is_written_with_its_interval():
    assert Rate(count=4, total=4).exact_text == "4 of 4 (100.0%, 95 % interval 39.8% to 100.0%)"
    assert str(Rate(count=1, total=2)) == "50.0 % (9.5 to 90.5)"


def test_a_score_counts_detections_and_false_alarms():
    faulty = [Faulty(True, True), Faulty(True, False), Faulty(False, False)]
    healthy = [Healthy(), Healthy(has_warning=True), Healthy(has_error=True), Healthy()]

    score = score_planted(faulty, healthy)

    assert score.caught == Rate(count=2, total=3)
    assert score.first == Rate(count=1, total=3)
    assert score.false_errors == Rate(count=1, total=4)
    assert score.false_warnings == Rate(count=1, total=4)
    assert not score.is_perfect


@pytest.mark.parametrize(
    ("faulty", "healthy", "perfect"),
    [
        ([Faulty(True, False)], [Healthy(has_warning=True)], True),
        ([Faulty(False, False)], [Healthy()], False),
        ([Faulty(True, True)], [Healthy(has_error=True)], False),
        ([], [Healthy()], True),
    ],
)
def test_a_detector_is_perfect_without_a_miss_or_a_false_error(faulty, healthy, perfect):
    assert score_planted(faulty, healthy).is_perfect is perfect


def test_rate_of_no_results_is_none():
    assert rate_of([], bool) is None
    assert score_planted([], []).caught is None


def test_a_scratch_folder_is_empty_and_removed(tmp_path):
    with scratch_folder(tmp_path) as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("x")
        assert folder.parent == tmp_path

    assert list(tmp_path.iterdir()) == []


def test_a_line_shows_result_duration_and_text():
    assert result_line("missed", "red", "nothing").plain == "missed        nothing"
    assert result_line("caught", "green", "it", seconds=1.5).plain == (
        "caught           1.50 s  it"
    )
