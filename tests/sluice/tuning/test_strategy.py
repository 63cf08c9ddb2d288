"""From the budget to the strategy (TUNE-1, TUNE-2)."""

import pytest

from sluice.errors import SettingsError
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space
from sluice.tuning.strategy import choose_strategy
from tests.sluice.tuning.toy_space import space


def chosen(num_trials, scheduler="auto", max_epochs=100, **more):
    settings = SearchSettings(num_trials=num_trials, scheduler=scheduler, **more)
    return choose_strategy(space(), settings, max_epochs=max_epochs)


@pytest.mark.parametrize(
    ("num_trials", "proposals", "scheduler", "num_parameters"),
    [
        (2, "random", "median", 3),
        (19, "random", "median", 3),
        (20, "tpe", "median", 5),
        (100, "tpe", "median", 5),
        (101, "random", "asha", 5),
    ],
)
def test_the_budget_decides(num_trials, proposals, scheduler, num_parameters):
    found = chosen(num_trials)

    assert (found.proposals, found.scheduler) == (proposals, scheduler)
    assert found.parameters == tuple(space().parameters)[:num_parameters]
    assert str(num_trials) in found.reason


def test_asha_has_grace_10_and_reduction_3():
    assert chosen(101).decision_epochs == (10, 30, 90)
    assert chosen(20, "asha").scheduler == "asha"
    assert chosen(20, "none").decision_epochs == ()


@pytest.mark.parametrize("max_epochs", [2, 3, 10, 11, 25])
@pytest.mark.parametrize("num_trials", [5, 50, 500])
def test_weak_trials_are_stopped_early_however_short_trials_are(max_epochs, num_trials):
    """Pruning is always on (TUNE-2)."""
    epochs = chosen(num_trials, max_epochs=max_epochs).decision_epochs

    assert epochs
    assert list(epochs) == sorted(set(epochs))
    assert 1 <= epochs[0] <= epochs[-1] < max_epochs


def test_pbt_comes_on_request_with_a_step_every_5_epochs():
    found = chosen(8, "pbt", max_epochs=16)

    assert (found.scheduler, found.decision_epochs) == ("pbt", (5, 10, 15))


def test_pbt_without_anything_to_change_or_time_to_change_it_is_refused():
    with pytest.raises(SettingsError, match="every 5 epochs"):
        chosen(8, "pbt", max_epochs=5)
    fixed = Space.parse(
        {"parameters": {"model.hidden": {"kind": "integers", "low": 4, "high": 8}}}, where="s"
    )
    with pytest.raises(SettingsError, match=r"training\.learning_rate"):
        choose_strategy(fixed, SearchSettings(scheduler="pbt"), max_epochs=25)


def test_a_grace_that_does_not_fit_is_replaced_and_said():
    found = chosen(20, "asha", max_epochs=25, grace_epochs=30)

    assert found.decision_epochs == (8, 24)
    assert "from epoch 8 on: grace_epochs 30 is not below max_epochs 25" in found.reason
    for fits in (chosen(20, "asha", max_epochs=31, grace_epochs=30), chosen(8, "pbt")):
        assert "grace_epochs" not in fits.reason
    assert "grace_epochs" not in chosen(20, "none", max_epochs=25, grace_epochs=30).reason
