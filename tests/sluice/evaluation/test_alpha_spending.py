"""Alpha is divided over the attempts on one window of rows."""

import numpy as np
import pytest

from sluice.base.errors import SettingsError
from sluice.evaluation.alpha_spending import count_attempt, settings_for_attempt, spent_alpha
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.row_sketch import RowSketch


def test_all_attempts_together_spend_less_than_alpha():
    spent = [spent_alpha(0.05, attempt) for attempt in range(1, 100_001)]

    assert sum(spent[:30]) < 0.05
    assert 0.0499 < sum(spent) < 0.05  # nearly all of it after many attempts
    assert spent == sorted(spent, reverse=True)


def test_the_first_attempt_gets_the_largest_share():
    # zeta(1.6) = 2.285766
    assert spent_alpha(0.05, 1) == pytest.approx(0.05 / 2.285766, rel=1e-6)
    assert spent_alpha(0.05, 2) == pytest.approx(0.05 / 2.285766 / 2**1.6, rel=1e-6)


def test_settings_for_an_attempt_differ_only_in_alpha():
    settings = GateSettings(alpha=0.02, min_gain=0.1, min_seeds=7)

    third = settings_for_attempt(settings, 3)

    assert third == settings.model_copy(update={"alpha": spent_alpha(0.02, 3)})
    assert third.alpha < 0.02


def test_attempts_on_overlapping_windows_are_counted():
    labels = np.array([f"{row:05d}" for row in range(4000)])
    current = RowSketch.of(labels[1000:3000])
    same_rows, shifted_by_one_row, overlap_70, overlap_50 = (
        RowSketch.of(labels[start : start + 2000]) for start in (1000, 999, 400, 0)
    )
    no_overlap = RowSketch.of(labels[:500])

    def count_earlier(*earlier, overlap=0.6):
        return count_attempt(current, earlier, overlap=overlap)

    assert count_earlier() == 1
    assert count_earlier(same_rows, same_rows, shifted_by_one_row) == 4
    assert count_earlier(overlap_70) == 2
    assert count_earlier(overlap_70, overlap=0.9) == 1
    assert count_earlier(overlap_50) == 1
    assert count_earlier(no_overlap) == 1
    assert count_earlier(None, no_overlap) == 2  # the rows of an old verdict are unknown and count


@pytest.mark.parametrize("attempt", [0, -1])
def test_an_attempt_number_below_one_is_rejected(attempt):
    with pytest.raises(SettingsError, match=f"at least 1, got {attempt}"):
        spent_alpha(0.05, attempt)
