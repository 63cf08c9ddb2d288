"""Validation of a rollout's settings (ROLL-1)."""

import pytest

from sluice.base.errors import SettingsError
from sluice.rollout.settings import RolloutSettings


@pytest.mark.parametrize(
    ("values", "shares", "shadow"),
    [
        ({}, (0.05, 0.25, 0.5, 1.0), (False, False, False, True)),
        ({"shares": [0.1, 1.0]}, (0.1, 1.0), (False, True)),
        ({"strategy": "shadow"}, (0.0,), (True,)),
        ({"strategy": "blue-green"}, (0.0, 1.0), (True, True)),
        ({"strategy": "ab"}, (0.5,), (False,)),
    ],
)
def test_strategy_defines_shares_and_shadow_of_its_steps(values, shares, shadow):
    steps = RolloutSettings.parse(values, where="test").steps

    assert tuple(step.share for step in steps) == shares
    assert tuple(step.is_shadowed for step in steps) == shadow


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategy": "shadow", "shares": [0.5]}, "shares is not used with shadow"),
        ({"shares": [0.5, 0.25, 1.0]}, "must increase"),
        ({"shares": [0.0, 1.0]}, "must increase within"),
        ({"shares": []}, "must increase"),
        ({"shares": [0.05, 0.5]}, "last share of a canary must be 1"),
        ({"shares": [0.5, float("nan")]}, "finite number"),
        ({"strategy": "ab", "shares": [0.2, 0.4]}, "exactly one share, which is below 1"),
        ({"min_step_s": 60.0, "max_step_s": 60.0}, "max_step_s must exceed min_step_s"),
        ({"odds_ratios": [0.5, 2.0]}, "start above 1"),
        ({"odds_ratios": [2.0, 2.0]}, "odds_ratios must increase"),
        ({"alpha": 0.0}, "alpha"),
        ({"lease": 5}, "lease_s"),
    ],
)
def test_inconsistent_settings_are_rejected(values, message):
    with pytest.raises(SettingsError, match=message):
        RolloutSettings.parse(values, where="test")


def test_quality_is_needed_by_ab_and_if_required():
    assert RolloutSettings(strategy="ab").needs_quality
    assert not RolloutSettings().needs_quality
    assert RolloutSettings(quality="required").needs_quality
