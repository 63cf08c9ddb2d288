"""Invalid thresholds of the gate are rejected."""

import pytest

from sluice.base.errors import SettingsError
from sluice.config.poc_settings import PocSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mini_row": 512}, "Did you mean 'mini_rows'"),
        ({"mini_seeds": 1}, "mini_seeds"),
        ({"min_loss_decrease": 0.0}, "min_loss_decrease"),
        ({"selector_first_epoch": 100, "selector_last_epoch": 105}, "at least two candidates"),
        ({"mini_rows": 40, "mini_min_rows": 60}, "mini_min_rows must not be above"),
        ({"times": {"selector": {"typical_s": 2.0, "max_s": 1.0}}}, "max_s must not be below"),
    ],
)
def test_an_invalid_setting_is_rejected(values, message):
    with pytest.raises(SettingsError, match=message):
        PocSettings.parse(values, where="defs.yaml")


def test_one_time_limit_can_be_set_alone():
    parsed = PocSettings.parse(
        {"times": {"mini_training": {"typical_s": 5.0, "max_s": 9.0}}}, where="defs.yaml"
    )

    assert parsed.times.mini_training.max_s == 9.0
    assert parsed.times.whole_gate.max_s == 300.0
