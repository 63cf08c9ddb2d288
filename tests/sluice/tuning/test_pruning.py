"""Rules that stop weak trials: known answers, NaN, and Ray's own ASHA as the oracle."""

import math
import random
from types import SimpleNamespace

import pytest

from sluice.tuning.pruning import asha_rule, median_rule, never


def test_asha_lets_the_best_third_go_on():
    rule = asha_rule(3)

    assert rule(9.0, []) == ""  # the first at a rung
    assert rule(2.0, [1.0, 2.0, 3.0, 4.0]) == ""
    assert rule(2.1, [1.0, 2.0, 3.0, 4.0]) != ""
    assert "above 2" in rule(5.0, [1.0, 2.0, 3.0, 4.0])


def test_the_median_rule_needs_four_others():
    rule = median_rule()

    assert rule(9.0, [1.0, 1.0, 1.0]) == ""
    assert rule(9.0, [1.0, 1.0, 1.0, 1.0]) != ""
    assert rule(2.5, [1.0, 2.0, 3.0, 4.0]) == ""
    assert rule(2.6, [1.0, 2.0, 3.0, 4.0]) != ""


@pytest.mark.parametrize("rule", [asha_rule(3), median_rule(), never])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_never_goes_on(rule, loss):
    assert rule(loss, [])
    assert rule(loss, [1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("rule", [asha_rule(3), median_rule()])
def test_a_lower_loss_is_never_stopped_where_a_higher_one_goes_on(rule):
    others = [random.Random(4).gauss(0, 1) for _ in range(30)]
    goes_on = [not rule(loss / 10, others) for loss in range(-30, 30)]

    assert goes_on == sorted(goes_on, reverse=True)
    assert len(set(goes_on)) == 2


@pytest.mark.slow
def test_asha_stops_what_rays_asha_stops_on_recorded_curves():
    from ray.tune.schedulers.async_hyperband import _Bracket

    for seed in range(20):
        draw = random.Random(seed)
        curves = {str(i): [draw.gauss(i % 5, 1) / (e + 1) for e in range(27)] for i in range(30)}
        oracle = _Bracket(3, 27, 3, 0, stop_last_trials=False)
        rungs: dict[int, dict[str, float]] = {3: {}, 9: {}}
        ours, theirs = {}, {}
        for name, curve in curves.items():
            for epoch in (3, 9):
                action = oracle.on_result(SimpleNamespace(trial_id=name), epoch, -curve[epoch - 1])
                if name not in theirs and action == "STOP":
                    theirs[name] = epoch
                if name not in ours:
                    if asha_rule(3)(curve[epoch - 1], list(rungs[epoch].values())):
                        ours[name] = epoch
                    rungs[epoch][name] = curve[epoch - 1]
                if name in ours or name in theirs:
                    break
        assert ours == theirs
        assert 10 < len(ours) < 30
