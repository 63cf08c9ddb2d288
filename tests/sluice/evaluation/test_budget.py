"""Alpha over the attempts on one window: what each may spend."""

import pytest

from sluice.errors import SettingsError
from sluice.evaluation.budget import for_attempt, spent_alpha
from sluice.evaluation.settings import GateSettings


def test_all_attempts_together_never_spend_more_than_alpha():
    spent = [spent_alpha(0.05, attempt) for attempt in range(1, 100_001)]

    assert sum(spent[:30]) < 0.05
    assert 0.0499 < sum(spent) < 0.05  # and nearly all of it in the long run
    assert spent == sorted(spent, reverse=True)


def test_the_first_attempt_gets_the_largest_part_by_hand():
    # zeta(1.6) = 2.285766
    assert spent_alpha(0.05, 1) == pytest.approx(0.05 / 2.285766, rel=1e-6)
    assert spent_alpha(0.05, 2) == pytest.approx(0.05 / 2.285766 / 2**1.6, rel=1e-6)


def test_only_alpha_of_the_settings_changes():
    settings = GateSettings(alpha=0.02, min_gain=0.1, min_seeds=7)

    third = for_attempt(settings, 3)

    assert third == settings.model_copy(update={"alpha": spent_alpha(0.02, 3)})
    assert third.alpha < 0.02


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_are_counted_from_one(attempt):
    with pytest.raises(SettingsError, match=f"from 1, got {attempt}"):
        spent_alpha(0.05, attempt)
