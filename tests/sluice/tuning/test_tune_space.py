"""Tune's config of a trial: every kind of parameter, both ways, for any searcher."""

import copy
import pickle

import numpy as np
import optuna
import pytest

from sluice.base.errors import ContractError, SettingsError
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.tune_space import (
    base_params,
    complete_config,
    decode,
    encode,
    optuna_space,
    paths_outside_space,
    tune_space,
)
from tests.sluice.tuning.random_spaces import random_space
from tests.sluice.tuning.toy_space import space

BASE = TrialSettings()


def parse(parameters) -> Space:
    return Space.parse({"parameters": parameters}, where="space")


def drawn(own, seed):
    rng = np.random.default_rng(seed)
    return own.choose(BASE, lambda _path, parameter: parameter.sample(rng))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert type(found[path]) is type(value), path
        if isinstance(value, float):
            assert found[path] == pytest.approx(value, rel=1e-9, abs=1e-12), path
        else:
            assert found[path] == value, path


@pytest.mark.parametrize("seed", range(60))
def test_what_is_encoded_is_decoded_to_the_same_values(seed):
    own = random_space(seed)
    for draw in range(5):
        params = drawn(own, draw)
        config = encode(own, BASE, params)

        assert_same(decode(own, BASE, config), params)
        assert set(config) <= set(tune_space(own, BASE))


@pytest.mark.parametrize("seed", range(60))
def test_what_tune_draws_is_decoded_to_values_that_the_space_holds(seed):
    """Oracle: the conditions and ``contains`` of each kind."""
    own = random_space(seed)
    domains = tune_space(own, BASE)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        config = {name: domain.sample(random_state=rng) for name, domain in domains.items()}
        params = decode(own, BASE, config)

        assert all(own.parameters[path].contains(value) for path, value in params.items())
        expected = own.choose(BASE, lambda path, _parameter, known=params: known.get(path))
        assert list(params) == list(expected)


@pytest.mark.parametrize("seed", range(30))
def test_optuna_suggests_only_what_counts(seed):
    own = random_space(seed)
    suggest = optuna_space(own, BASE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    for _ in range(5):
        trial = study.ask()
        suggest(trial)
        params = decode(own, BASE, trial.params)

        assert all(own.parameters[path].contains(value) for path, value in params.items())
        assert set(encode(own, BASE, params)) <= set(trial.params)
        assert {name.partition("#")[0] for name in trial.params} == set(params)


def test_the_names_of_the_config_say_what_they_hold():
    config = encode(
        space(),
        BASE,
        {"training.weight_decay": 0.01, "training.batch_rows": 64, "model.dropout": 0.1},
    )

    assert config == {
        "training.weight_decay#on": True,
        "training.weight_decay": 0.01,
        "training.batch_rows#exponent": 6,
        "model.dropout": 0.1,
    }
    assert encode(space(), BASE, {"training.weight_decay": 0.0}) == {
        "training.weight_decay#on": False
    }


def test_a_value_out_of_range_becomes_the_nearest_one():
    """A scheduler may have multiplied it."""
    own = parse(
        {
            "training.learning_rate": {"kind": "log_uniform", "low": 1e-4, "high": 1e-1},
            "model.hidden": {"kind": "integers", "low": 8, "high": 64, "multiple_of": 8},
            "training.clip_norm": {
                "kind": "tune",
                "function": "quniform",
                "arguments": [1, 3, 0.5],
            },
        }
    )
    config = {"training.learning_rate": 0.12, "model.hidden#multiple": 9, "training.clip_norm": 1.7}

    assert decode(own, BASE, config) == {
        "training.learning_rate": 0.1,
        "model.hidden": 64,
        "training.clip_norm": 1.5,
    }


def test_numpy_scalars_of_a_searcher_become_plain_values():
    config = {
        "training.learning_rate": np.float64(0.01),
        "training.weight_decay#on": np.False_,
        "training.weight_decay": np.float64(0.01),
        "training.batch_rows#exponent": np.int64(4),
        "model.architecture": np.str_("lstm"),
        "model.dropout": np.float64(0.1),
    }

    params = decode(space(), BASE, config)
    assert params == {
        "training.learning_rate": 0.01,
        "training.weight_decay": 0.0,
        "training.batch_rows": 16,
        "model.architecture": "lstm",
    }
    assert {type(value) for value in params.values()} == {float, int, str}


def test_a_config_that_lacks_a_name_is_refused():
    with pytest.raises(
        ContractError, match=r"must contain 'training\.weight_decay'.*It contains: "
    ):
        decode(space(), BASE, {"training.learning_rate": 0.01})


def test_a_parameter_that_never_counts_is_not_searched():
    own = parse(
        {
            "model.dropout": {
                "kind": "uniform",
                "low": 0.0,
                "high": 0.5,
                "when": {"path": "model.layers", "one_of": [2]},
            }
        }
    )

    assert tune_space(own, BASE) == {}
    assert list(tune_space(own, TrialSettings(model=ModelSettings(layers=2)))) == ["model.dropout"]


@pytest.mark.parametrize("seed", range(20))
def test_a_whole_config_has_every_name(seed):
    own = random_space(seed)
    params = drawn(own, seed)
    config = complete_config(own, BASE, params)

    assert config.keys() == tune_space(own, BASE).keys()
    assert_same(decode(own, BASE, config), params)


def test_own_values_are_those_that_count_and_that_the_space_holds():
    own = TrialSettings(training=TrainSettings(learning_rate=0.03, weight_decay=0.5, batch_rows=64))

    assert base_params(space(), own) == {
        "training.learning_rate": 0.03,
        "training.batch_rows": 64,
        "model.architecture": "gru",
        "model.dropout": 0.0,
    }
    assert paths_outside_space(space(), own) == ("training.weight_decay",)


def test_a_space_for_optuna_can_be_copied_and_sent():
    suggest = optuna_space(space(), BASE)

    assert copy.deepcopy(suggest) == suggest == pickle.loads(pickle.dumps(suggest))


NORMAL = {"kind": "tune", "function": "randn", "arguments": [10.0, 2.0]}


def test_a_normal_distribution_is_searched_by_its_quantile():
    own = parse({"model.options.scale": NORMAL})
    parameter = own.parameters["model.options.scale"]

    assert list(tune_space(own, BASE)) == ["model.options.scale#quantile"]
    assert decode(own, BASE, {"model.options.scale#quantile": 0.5}) == {"model.options.scale": 10.0}
    drawn = [parameter.value_at(place) for place in np.random.default_rng(0).random(4000)]
    assert np.mean(drawn) == pytest.approx(10.0, abs=0.1)
    assert np.std(drawn) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("uniform", [1], r"takes 2 arguments \(lower, upper\), got \[1\]"),
        ("uniform", [2, 1], "smallest value 2.0 must be below the largest 1.0"),
        ("quniform", [0.0, 1.0, 0.3], "multiples of q 0.3, got 1.0"),
        ("quniform", [0.0, 1.0, 0.0], "q must be above 0"),
        ("loguniform", [0.0, 1.0], "lower must be above 0"),
        ("lograndint", [0, 9], "lower must be above 0"),
        ("randn", [0.0, 0.0], "sd must be above 0"),
        ("randint", [1, 2.5], "takes integers"),
        ("randint", [3, 4], "smallest value 3"),
        ("qrandint", [5, 7, 4], "must be below the largest"),
        ("sample_from", [1], "'uniform', 'quniform'"),
        ("choice", [1, 2], "takes one argument, the list of its options"),
    ],
)
def test_a_sample_function_that_cannot_be_drawn_from_is_refused(function, arguments, said):
    with pytest.raises(SettingsError, match=said):
        parse({"model.options.x": {"kind": "tune", "function": function, "arguments": arguments}})


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("quniform", [1, 3, 0.5]),
        ("qloguniform", [0.5, 3.0, 0.5]),
        ("randint", [-2, 5]),
        ("qrandint", [0, 20, 5]),
        ("qrandint", [0, 5, 1]),
        ("lograndint", [1, 9]),
        ("qlograndint", [3, 20, 4]),
    ],
)
def test_values_are_those_that_tune_itself_draws(function, arguments):
    """Oracle: ``ray.tune``; its upper ends and quanta are easily mistaken."""
    from ray import tune

    own = parse({"model.options.x": {"kind": "tune", "function": function, "arguments": arguments}})
    parameter = own.parameters["model.options.x"]
    rng = np.random.default_rng(0)
    domain = getattr(tune, function)(*arguments)
    theirs = {round(domain.sample(random_state=rng), 9) for _ in range(800)}

    assert {parameter.value_at(place) for place in np.linspace(0, 1, 500)} == theirs
    assert all(parameter.contains(value) for value in theirs)
    assert (min(theirs), max(theirs)) == (parameter.low, parameter.high)
