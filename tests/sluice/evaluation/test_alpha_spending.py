"""Alpha over the attempts on one window: what each may spend."""

import numpy as np
import pytest

from sluice.base.errors import SettingsError
from sluice.evaluation.alpha_spending import count_attempt, settings_for_attempt, spent_alpha
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.row_sketch import RowSketch


def test_all_attempts_together_never_spend_more_than_alpha():
    spent = [spent_alpha(0.05, attempt) for attempt in range(1, 100_001)]

    assert sum(spent[:30]) < 0.05
    assert 0.0499 < sum(spent) < 0.05  # and nearly all of it in the long run
    assert spent == sorted(spent, reverse=True)


def test_the_first_attempt_gets_the_largest_share():
    # zeta(1.6) = 2.285766
    assert spent_alpha(0.05, 1) == pytest.approx(0.05 / 2.285766, rel=1e-6)
    assert spent_alpha(0.05, 2) == pytest.approx(0.05 / 2.285766 / 2**1.6, rel=1e-6)


def test_only_alpha_of_the_settings_changes():
    settings = GateSettings(alpha=0.02, min_gain=0.1, min_seeds=7)

    third = settings_for_attempt(settings, 3)

    assert third == settings.model_copy(update={"alpha": spent_alpha(0.02, 3)})
    assert third.alpha < 0.02


def test_windows_with_enough_common_rows_are_attempts_on_one_window():
    labels = np.array([f"{row:05d}" for row in range(4000)])
    today = RowSketch.of(labels[1000:3000])
    same, a_day_before, half_a_year_before, last_year = (
        RowSketch.of(labels[start : start + 2000]) for start in (1000, 999, 400, 0)
    )
    elsewhere = RowSketch.of(labels[:500])

    def count(*earlier, overlap=0.6):
        return count_attempt(today, earlier, overlap=overlap)

    assert count() == 1
    assert count(same, same, a_day_before) == 4
    assert count(half_a_year_before) == 2  # 70 % of the rows
    assert count(half_a_year_before, overlap=0.9) == 1
    assert count(last_year) == 1  # 50 %
    assert count(elsewhere) == 1
    assert count(None, elsewhere) == 2  # it does not say what it was made on


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt):
    with pytest.raises(SettingsError, match=f"at least 1, got {attempt}"):
        spent_alpha(0.05, attempt)
