"""The strategy of a search follows from its budget and settings (TUNE-1, TUNE-2)."""

import pytest

from sluice.base.errors import SettingsError
from sluice.training.settings import TrainSettings
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.strategy import changing_paths, choose_strategy, report_epochs
from tests.sluice.tuning.toy_space import space


def choose(num_trials, scheduler="auto", max_epochs=100, **more):
    settings = SearchSettings(num_trials=num_trials, scheduler=scheduler, **more)
    return choose_strategy(space(), settings, base(max_epochs))


def base(max_epochs=100, **training):
    return TrialSettings(training=TrainSettings(max_epochs=max_epochs, **training))


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
def test_number_of_trials_selects_searcher_scheduler_and_parameters(
    num_trials, proposals, scheduler, num_parameters
):
    found = choose(num_trials)

    assert (found.proposals, found.scheduler) == (proposals, scheduler)
    assert found.parameters == tuple(space().parameters)[:num_parameters]
    assert str(num_trials) in found.reason


def test_asha_decides_at_epochs_10_30_and_90():
    assert choose(101).decision_epochs == (10, 30, 90)
    assert choose(20, "asha").scheduler == "asha"
    assert choose(20, "none").decision_epochs == ()


@pytest.mark.parametrize("max_epochs", [2, 3, 10, 11, 25])
@pytest.mark.parametrize("num_trials", [5, 50, 500])
def test_pruning_is_enabled_for_trials_of_any_length(max_epochs, num_trials):
    """TUNE-2: pruning is always enabled."""
    epochs = choose(num_trials, max_epochs=max_epochs).decision_epochs

    assert epochs
    assert list(epochs) == sorted(set(epochs))
    assert 1 <= epochs[0] <= epochs[-1] < max_epochs


def test_pbt_decides_every_5_epochs():
    found = choose(8, "pbt", max_epochs=16)

    assert (found.scheduler, found.decision_epochs) == ("pbt", (5, 10, 15))


def test_pbt_without_changeable_parameters_or_enough_epochs_is_rejected():
    with pytest.raises(SettingsError, match="every 5 epochs"):
        choose(8, "pbt", max_epochs=5)
    fixed = Space.parse(
        {"parameters": {"model.hidden": {"kind": "integers", "low": 4, "high": 8}}}, where="s"
    )
    with pytest.raises(SettingsError, match=r"training\.learning_rate.*numeric argument") as raised:
        choose_strategy(fixed, SearchSettings(scheduler="pbt"), base(25))
    assert "dropout" not in raised.value.what


def test_too_long_grace_period_is_replaced_and_reported():
    found = choose(20, "asha", max_epochs=25, grace_epochs=30)

    assert found.decision_epochs == (8, 24)
    assert "from epoch 8 on: grace_epochs 30 is not below max_epochs 25" in found.reason
    for fits in (choose(20, "asha", max_epochs=31, grace_epochs=30), choose(8, "pbt")):
        assert "grace_epochs" not in fits.reason
    assert "grace_epochs" not in choose(20, "none", max_epochs=25, grace_epochs=30).reason


@pytest.mark.parametrize(
    ("scheduler", "reports"),
    [
        ("asha", (10, 25)),
        ("median", (10, 15, 20, 25)),
        ("pbt", (5, 10, 15, 20, 25)),
        ("none", (25,)),
        ({"class": "ray.tune.schedulers:HyperBandScheduler"}, (4, 8, 12, 16, 20, 24, 25)),
    ],
)
def test_trials_report_at_decision_epochs_and_at_the_end(scheduler, reports):
    settings = SearchSettings.parse({"scheduler": scheduler, "report_epochs": 4}, where="t")
    found = choose_strategy(space(), settings, base(25))

    assert report_epochs(found, settings, 25) == reports


ARGUMENT = "training.optimizer_arguments.{}"
OPTIMIZER = "training.optimizer"


def find_changing_paths(parameters, **training):
    search_space = Space.parse({"parameters": parameters}, where="space")
    return changing_paths(search_space, base(**training))


def choice(*options, **when):
    return {"kind": "choice", "options": list(options)} | ({"when": when} if when else {})


RATE = {"kind": "log_uniform", "low": 1e-4, "high": 1e-1}
SHARE = {"kind": "uniform", "low": 0.5, "high": 0.99}


def test_pbt_changes_only_parameters_that_may_change_with_their_optimizer():
    names = {
        OPTIMIZER: choice("adamw", "sgd"),
        "training.learning_rate": RATE,
        "training.warmup_share": {"kind": "uniform", "low": 0.0, "high": 0.2},
        "training.batch_rows": {"kind": "powers_of_two", "low": 8, "high": 64},
        "model.dropout": {"kind": "uniform", "low": 0.0, "high": 0.5},
        ARGUMENT.format("betas"): choice(
            [0.9, 0.999], [0.9, 0.99], path=OPTIMIZER, one_of=["adamw"]
        ),
        ARGUMENT.format("momentum"): SHARE | {"when": {"path": OPTIMIZER, "one_of": ["sgd"]}},
        ARGUMENT.format("nesterov"): choice(True, False, path=OPTIMIZER, one_of=["sgd"]),
    }

    assert find_changing_paths(names) == (
        "training.learning_rate",
        ARGUMENT.format("betas"),
        ARGUMENT.format("momentum"),
    )


@pytest.mark.parametrize(
    ("optimizer", "parameter", "is_changed"),
    [
        ("sgd", SHARE, True),
        ("adamw", SHARE, False),
        ("rmsprop", SHARE, True),
        # torch creates momentum buffers in the first step, but not if momentum is 0.
        ("rmsprop", SHARE | {"low": 0.0}, False),
    ],
)
def test_momentum_may_change_if_the_optimizer_reads_it_at_every_step(
    optimizer, parameter, is_changed
):
    path = ARGUMENT.format("momentum")
    assert find_changing_paths({path: parameter}, optimizer=optimizer) == (
        (path,) if is_changed else ()
    )


def test_pbt_does_not_change_a_parameter_used_in_a_condition():
    clip = choice(1.0, 5.0)
    depends = RATE | {"when": {"path": "training.clip_norm", "one_of": [1.0]}}
    names = {"training.clip_norm": clip, "training.learning_rate": depends}

    assert find_changing_paths(names) == ("training.learning_rate",)
    assert find_changing_paths({"training.clip_norm": clip}) == ("training.clip_norm",)


def test_explicit_searcher_searches_every_parameter():
    searcher = {"class": "ray.tune.search.optuna:OptunaSearch"}
    settings = SearchSettings.parse({"num_trials": 5, "searcher": searcher}, where="t")
    found = choose_strategy(space(), settings, base())

    assert found.parameters == tuple(space().parameters)
    assert (found.proposals, found.scheduler) == (searcher["class"], "median")
