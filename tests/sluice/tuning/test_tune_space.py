"""Conversion between trial parameters and the config of Ray Tune, for every parameter kind."""

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


def sample_params(search_space, seed):
    rng = np.random.default_rng(seed)
    return search_space.choose(BASE, lambda _path, parameter: parameter.sample(rng))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert type(found[path]) is type(value), path
        if isinstance(value, float):
            assert found[path] == pytest.approx(value, rel=1e-9, abs=1e-12), path
        else:
            assert found[path] == value, path


@pytest.mark.parametrize("seed", range(60))
def test_encoded_params_decode_to_the_same_values(seed):
    search_space = random_space(seed)
    for draw in range(5):
        params = sample_params(search_space, draw)
        config = encode(search_space, params)

        assert_same(decode(search_space, BASE, config), params)
        assert set(config) <= set(tune_space(search_space, BASE))


@pytest.mark.parametrize("seed", range(60))
def test_samples_of_tune_decode_to_values_of_the_space(seed):
    """Oracle: the conditions and ``contains`` of each kind."""
    search_space = random_space(seed)
    domains = tune_space(search_space, BASE)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        config = {name: domain.sample(random_state=rng) for name, domain in domains.items()}
        params = decode(search_space, BASE, config)

        assert all(search_space.parameters[path].contains(value) for path, value in params.items())
        expected = search_space.choose(BASE, lambda path, _parameter, known=params: known.get(path))
        assert list(params) == list(expected)


@pytest.mark.parametrize("seed", range(30))
def test_optuna_suggests_only_active_parameters(seed):
    search_space = random_space(seed)
    suggest = optuna_space(search_space, BASE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    for _ in range(5):
        trial = study.ask()
        suggest(trial)
        params = decode(search_space, BASE, trial.params)

        assert all(search_space.parameters[path].contains(value) for path, value in params.items())
        assert set(encode(search_space, params)) <= set(trial.params)
        assert {name.partition("#")[0] for name in trial.params} == set(params)


def test_config_names_have_a_suffix_for_encoded_values():
    config = encode(
        space(),
        {"training.weight_decay": 0.01, "training.batch_rows": 64, "model.dropout": 0.1},
    )

    assert config == {
        "training.weight_decay#on": True,
        "training.weight_decay": 0.01,
        "training.batch_rows#exponent": 6,
        "model.dropout": 0.1,
    }
    assert encode(space(), {"training.weight_decay": 0.0}) == {"training.weight_decay#on": False}


def test_out_of_range_value_decodes_to_the_nearest_valid_one():
    """A scheduler may multiply a value beyond its range."""
    search_space = parse(
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

    assert decode(search_space, BASE, config) == {
        "training.learning_rate": 0.1,
        "model.hidden": 64,
        "training.clip_norm": 1.5,
    }


def test_numpy_scalars_decode_to_python_values():
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


def test_config_without_a_required_name_is_rejected():
    with pytest.raises(
        ContractError, match=r"must contain 'training\.weight_decay'.*It contains: "
    ):
        decode(space(), BASE, {"training.learning_rate": 0.01})


def test_parameter_whose_condition_never_holds_is_not_searched():
    search_space = parse(
        {
            "model.dropout": {
                "kind": "uniform",
                "low": 0.0,
                "high": 0.5,
                "when": {"path": "model.layers", "one_of": [2]},
            }
        }
    )

    assert tune_space(search_space, BASE) == {}
    assert list(tune_space(search_space, TrialSettings(model=ModelSettings(layers=2)))) == [
        "model.dropout"
    ]


@pytest.mark.parametrize("seed", range(20))
def test_complete_config_has_every_name(seed):
    search_space = random_space(seed)
    params = sample_params(search_space, seed)
    config = complete_config(search_space, BASE, params)

    assert config.keys() == tune_space(search_space, BASE).keys()
    assert_same(decode(search_space, BASE, config), params)


def test_base_params_are_the_active_settings_within_the_space():
    base = TrialSettings(
        training=TrainSettings(learning_rate=0.03, weight_decay=0.5, batch_rows=64)
    )

    assert base_params(space(), base) == {
        "training.learning_rate": 0.03,
        "training.batch_rows": 64,
        "model.architecture": "gru",
        "model.dropout": 0.0,
    }
    assert paths_outside_space(space(), base) == ("training.weight_decay",)


def test_optuna_space_can_be_copied_and_pickled():
    suggest = optuna_space(space(), BASE)

    assert copy.deepcopy(suggest) == suggest == pickle.loads(pickle.dumps(suggest))


NORMAL = {"kind": "tune", "function": "randn", "arguments": [10.0, 2.0]}


def test_normal_distribution_is_searched_by_its_quantile():
    search_space = parse({"model.options.scale": NORMAL})
    parameter = search_space.parameters["model.options.scale"]

    assert list(tune_space(search_space, BASE)) == ["model.options.scale#quantile"]
    assert decode(search_space, BASE, {"model.options.scale#quantile": 0.5}) == {
        "model.options.scale": 10.0
    }
    samples = [parameter.value_at(place) for place in np.random.default_rng(0).random(4000)]
    assert np.mean(samples) == pytest.approx(10.0, abs=0.1)
    assert np.std(samples) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
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
def test_invalid_arguments_of_a_tune_function_are_rejected(function, arguments, message):
    with pytest.raises(SettingsError, match=message):
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
def test_values_equal_those_that_tune_samples(function, arguments):
    """Oracle: ``ray.tune``, whose upper bounds and quantization have many special cases."""
    from ray import tune

    search_space = parse(
        {"model.options.x": {"kind": "tune", "function": function, "arguments": arguments}}
    )
    parameter = search_space.parameters["model.options.x"]
    rng = np.random.default_rng(0)
    domain = getattr(tune, function)(*arguments)
    tune_values = {round(domain.sample(random_state=rng), 9) for _ in range(800)}

    assert {parameter.value_at(place) for place in np.linspace(0, 1, 500)} == tune_values
    assert all(parameter.contains(value) for value in tune_values)
    assert (min(tune_values), max(tune_values)) == (parameter.low, parameter.high)
