"""Schedulers of Ray Tune by name or import path, and errors before a search starts."""

import copy
import random

import pytest
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.schedulers.pb2 import PB2
from ray.tune.schedulers.pbt import _explore

from sluice.base.errors import SettingsError
from sluice.training.settings import TrainSettings
from sluice.tuning.schedulers import make_scheduler, metric_of
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.strategy import choose_strategy, plan_search
from sluice.tuning.tune_space import decode, encode
from tests.sluice.tuning.toy_space import space

BASE = TrialSettings(training=TrainSettings(max_epochs=27))


class Own(FIFOScheduler):
    """Custom scheduler."""

    def __init__(self, patience: int, max_t: int, time_attr: str):
        super().__init__()
        self.patience, self.max_t, self.time_attr = patience, max_t, time_attr


class NoScheduler:
    pass


def build_scheduler(scheduler, search_space=None, **more):
    settings = SearchSettings.parse({"scheduler": scheduler, "seed": 3} | more, where="search")
    search_space = search_space or space()
    return make_scheduler(settings, choose_strategy(search_space, settings, BASE), search_space, 27)


def plan(scheduler, search_space=None, **more):
    settings = SearchSettings.parse({"scheduler": scheduler} | more, where="search")
    return plan_search(search_space or space(), settings, BASE)


@pytest.mark.parametrize(
    ("name", "cls", "expected"),
    [
        ("asha", ASHAScheduler, {"_max_t": 27, "_reduction_factor": 3, "_time_attr": "epoch"}),
        ("median", MedianStoppingRule, {"_grace_period": 10, "_min_samples_required": 4}),
        ("none", FIFOScheduler, {}),
        (
            "pbt",
            PopulationBasedTraining,
            {
                "_perturbation_interval": 5,
                "_quantile_fraction": 0.25,
                "_resample_probability": 0.25,
                "_perturbation_factors": (0.8, 1.2),
                "_synch": False,
            },
        ),
    ],
)
def test_short_name_builds_the_ray_scheduler_with_the_settings(name, cls, expected):
    scheduler = build_scheduler(name)

    assert type(scheduler) is cls
    assert {key: getattr(scheduler, key) for key in expected} == expected
    assert scheduler.set_search_properties("loss", "min")
    copy.deepcopy(scheduler)


def test_rungs_of_asha_are_the_decision_epochs():
    asha = build_scheduler("asha", grace_epochs=3)
    settings = SearchSettings(scheduler="asha", grace_epochs=3)
    strategy = choose_strategy(space(), settings, BASE)

    rungs = sorted(milestone for milestone, _ in asha._brackets[0]._rungs)
    assert rungs == [3, 9, 27]
    assert strategy.decision_epochs == (3, 9)


@pytest.mark.parametrize(
    ("path", "arguments", "cls", "expected"),
    [
        ("ray.tune.schedulers:HyperBandScheduler", {}, HyperBandScheduler, {"_max_t_attr": 27}),
        ("ray.tune.schedulers.HyperBandScheduler", {}, HyperBandScheduler, {"_eta": 3}),
        (
            "ray.tune.schedulers:HyperBandScheduler",
            {"max_t": 9, "reduction_factor": 2},
            HyperBandScheduler,
            {"_max_t_attr": 9, "_eta": 2, "_time_attr": "epoch"},
        ),
        (
            "ray.tune.schedulers.pb2:PB2",
            {"quantile_fraction": 0.5},
            PB2,
            {"_perturbation_interval": 5, "_quantile_fraction": 0.5},
        ),
        (
            "ray.tune.schedulers:PopulationBasedTraining",
            {"synch": True},
            PopulationBasedTraining,
            {"_synch": True, "_perturbation_interval": 5},
        ),
        ("ray.tune.schedulers:HyperBandForBOHB", {}, HyperBandForBOHB, {"_max_t_attr": 27}),
        (
            "tests.sluice.tuning.test_schedulers:Own",
            {"patience": 4},
            Own,
            {"patience": 4, "max_t": 27, "time_attr": "epoch"},
        ),
    ],
)
def test_class_receives_its_arguments_and_those_of_the_search(path, arguments, cls, expected):
    scheduler = build_scheduler({"class": path, "arguments": arguments})

    assert f"{type(scheduler).__module__}:{type(scheduler).__qualname__}".endswith(cls.__qualname__)
    assert isinstance(scheduler, TrialScheduler)
    assert {key: getattr(scheduler, key) for key in expected} == expected
    assert scheduler.set_search_properties("loss", "min") or cls is Own


def test_pb2_receives_the_bounds_of_changeable_parameters():
    found = build_scheduler({"class": "ray.tune.schedulers.pb2:PB2"})

    assert found._hyperparam_bounds == {
        "training.learning_rate": [pytest.approx(1e-4), 1.0],
        "training.weight_decay": [pytest.approx(1e-4), pytest.approx(0.1)],
    }


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("ray.tune.schedulers:HyperBand", "has no 'HyperBand'. Did you mean"),
        ("ray.tune.schedules:PB2", "scheduler 'ray.tune.schedules:PB2'"),
        ("nonsense", "must have the form 'module:Name'"),
        ("tests.sluice.tuning.test_schedulers:NoScheduler", "must be a subclass of ray.*Scheduler"),
        ("os:system", "must be a subclass"),
        ("ray.tune.schedulers:ResourceChangingScheduler", "cannot be replayed after a kill"),
        ("ray.tune.schedulers:HyperBandForBOHB", "BOHB requires its scheduler and its searcher"),
        ("ray.tune.search.optuna:OptunaSearch", "scheduler .* must be a subclass"),
    ],
)
def test_unusable_class_is_rejected_when_the_search_is_planned(scheduler, message):
    with pytest.raises(SettingsError, match=message):
        plan({"class": scheduler})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"max_time": 9},
            "does not take the argument 'max_time'.*It takes: max_t, reduction_factor",
        ),
        ({"max_t": 0}, "refuses its arguments: Max .*not valid"),
        ({"max_t": "many"}, "refuses its arguments"),
        ({"metric": "loss"}, "The argument 'metric' of"),
        ({"time_attr": "step"}, "The argument 'time_attr' of"),
    ],
)
def test_invalid_argument_is_rejected_with_the_valid_ones(arguments, message):
    with pytest.raises(SettingsError, match=message):
        plan({"class": "ray.tune.schedulers:HyperBandScheduler", "arguments": arguments})


def test_missing_argument_is_rejected():
    with pytest.raises(SettingsError, match="missing 1 required positional argument: 'patience'"):
        plan({"class": "tests.sluice.tuning.test_schedulers:Own"})


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (
            {"class": "a:b", "argument": {}},
            "'scheduler.class.argument' is not .* Known settings: arguments, class",
        ),
        ({"arguments": {}}, "class"),
        ("hyperband", "'auto', 'asha', 'pbt', 'median' or 'none'"),
        (3, "'auto', 'asha', 'pbt', 'median' or 'none'"),
    ],
)
def test_malformed_scheduler_setting_is_rejected(scheduler, message):
    with pytest.raises(SettingsError, match=message):
        SearchSettings.parse({"scheduler": scheduler}, where="search")


def test_scheduler_settings_round_trip_through_json():
    settings = SearchSettings.parse(
        {"scheduler": {"class": "a.b:C", "arguments": {"x": [1, 2]}}}, where="search"
    )

    assert settings.model_dump(mode="json")["scheduler"]["class"] == "a.b:C"
    assert SearchSettings.parse(settings.model_dump(mode="python"), where="search") == settings
    assert SearchSettings.model_validate_json(settings.model_dump_json()) == settings


def test_population_schedulers_use_the_current_validation_loss():
    for name, metric in (("pbt", "val_loss"), ("asha", "loss"), ("none", "loss")):
        strategy = choose_strategy(space(), SearchSettings(scheduler=name), BASE)
        assert metric_of(strategy) == metric
    for path, metric in (("pb2:PB2", "val_loss"), ("hyperband:HyperBandScheduler", "loss")):
        scheduler = {"class": f"ray.tune.schedulers.{path}"}
        settings = SearchSettings.parse({"scheduler": scheduler}, where="search")
        assert metric_of(choose_strategy(space(), settings, BASE)) == metric


CHANGING = {
    "training.learning_rate": {"kind": "log_uniform", "low": 1e-3, "high": 1e-1},
    "training.weight_decay": {"kind": "log_uniform", "low": 1e-4, "high": 0.1, "may_be_off": True},
    "training.clip_norm": {"kind": "tune", "function": "quniform", "arguments": [1.0, 4.0, 0.5]},
    "training.optimizer_arguments.eps": {"kind": "choice", "options": [1e-8, 1e-6, 1e-4]},
    "training.optimizer_arguments.betas": {
        "kind": "choice",
        "options": [[0.9, 0.999], [0.95, 0.99], [0.8, 0.9]],
    },
    "training.batch_rows": {"kind": "powers_of_two", "low": 8, "high": 64},
}


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_changes_of_pbt_stay_within_the_space(decay):
    """Apply the exploration of Ray 300 times, starting at an end of the range."""
    search_space = Space.parse({"parameters": CHANGING}, where="space")
    pbt = build_scheduler("pbt", search_space)
    params = {
        "training.learning_rate": 0.1,
        "training.weight_decay": decay,
        "training.clip_norm": 4.0,
        "training.optimizer_arguments.eps": 1e-4,
        "training.optimizer_arguments.betas": [0.9, 0.999],
        "training.batch_rows": 64,
    }
    config = encode(search_space, params)
    config.setdefault("training.weight_decay", 0.01)  # as PBT does
    random.seed(0)
    values_by_path = {path: set() for path in params}
    for _ in range(300):
        config, _ = _explore(
            config, pbt._hyperparam_mutations, 0.25, (0.8, 1.2), pbt._custom_explore_fn
        )
        found = decode(search_space, BASE, config)
        assert encode(search_space, found).items() <= config.items()
        for path, value in found.items():
            assert search_space.parameters[path].contains(value), path
            values_by_path[path].add(repr(value))

    assert values_by_path["training.batch_rows"] == {"64"}
    assert (values_by_path["training.weight_decay"] == {"0.0"}) == (decay == 0.0)
    assert len(values_by_path["training.optimizer_arguments.betas"]) == 3
    assert len(values_by_path["training.optimizer_arguments.eps"]) == 3
    assert len(values_by_path["training.clip_norm"]) == 7
    assert len(values_by_path["training.learning_rate"]) > 100
