"""Search spaces (TUNE-2): valid definitions, and the settings of a trial."""

import numpy as np
import pytest

from sluice.base.errors import SettingsError
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.parameters import Choice, Integers, LogUniform, PowersOfTwo, Uniform
from sluice.tuning.spaces import Space, TrialSettings
from tests.sluice.tuning.toy_space import space

LR = {"kind": "log_uniform", "low": 1e-4, "high": 1e-1}


def parse(**parameters):
    named = {name.replace("__", "."): value for name, value in parameters.items()}
    return Space.parse({"parameters": named}, where="search.space")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"training__learning_rte": LR}, "Did you mean 'training.learning_rate'"),
        ({"training__dropout": LR}, "Did you mean 'model.dropout'"),
        ({"training__learning_rate": LR | {"high": 1e-5}}, "range must not be empty"),
        (
            {"training__learning_rate": LR | {"low": 1e-3, "high": 1.0000000000000002e-3}},
            "high divided by low must be finite and at least",
        ),
        ({"training__learning_rate": LR | {"low": float("nan")}}, "low"),
        ({"training__learning_rate": LR | {"low": 0.0}}, "greater than 0"),
        ({"training__learning_rate": LR | {"high": 200.0}}, "less than or equal to 100"),
        ({"training__batch_rows": {"kind": "powers_of_two", "low": 3, "high": 8}}, "got 3"),
        ({"training__batch_rows": LR}, "'training.batch_rows' cannot be 0.0001"),
        (
            {"model__hidden": {"kind": "integers", "low": 4, "high": 10, "multiple_of": 4}},
            "multiples of 4",
        ),
        ({"model__architecture": {"kind": "choice", "options": ["gru", "gru"]}}, "distinct"),
        ({"training__max_epochs": {"kind": "integers", "low": 1, "high": 9}}, "cannot be searched"),
        (
            {
                "training__learning_rate": LR | {"when": {"path": "model.layers", "one_of": [2]}},
                "model__layers": {"kind": "integers", "low": 1, "high": 3},
            },
            "must be defined before",
        ),
        ({}, "parameters"),
        ({"training__optimizer_arguments": LR}, "Search one of its entries, as 'training.optim"),
        ({"model__options": LR}, "Search one of its entries, as 'model.options.NAME'"),
        ({"model__options__a-b": LR}, "'model.options.a-b' is not a searchable parameter"),
        ({"training__optimizer_arguments__lr": LR}, "set training.learning_rate instead"),
        (
            {"training__optimizer": {"kind": "choice", "options": ["sgd", "adm"]}},
            "unknown optimizer",
        ),
        (
            {"training__device": {"kind": "choice", "options": ["cpu", "cuda"]}},
            "selects the machine's device",
        ),
        ({"workload__folds": {"kind": "choice", "options": [1, 2]}}, "on different rows cannot be"),
        ({"workload": LR}, "is not a searchable parameter"),
        ({"gate__min_gain": LR}, "model.options.NAME, .*workload.NAME"),
    ],
)
def test_invalid_space_is_rejected_with_its_cause(parameters, message):
    with pytest.raises(SettingsError, match=message):
        parse(**parameters)


KINDS = [
    LogUniform(low=1e-4, high=1e-1),
    LogUniform(low=1e-4, high=1e-1, may_be_off=True),
    Uniform(low=-1.0, high=2.0),
    Integers(low=8, high=64, multiple_of=8),
    PowersOfTwo(low=16, high=256),
]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_sampled_values_are_in_range_and_invertible_to_positions(kind):
    samples = [kind.sample(np.random.default_rng(i)) for i in range(400)]
    on = [value for value in samples if value]

    assert min(on) >= kind.low
    assert max(on) <= kind.high
    assert kind.value_at(0.0) == pytest.approx(kind.low)
    assert kind.value_at(1.0) == pytest.approx(kind.high)
    for value in on[:20]:
        assert kind.value_at(kind.position(value)) == pytest.approx(value)
    # Positions are uniformly distributed, so their mean is near 0.5.
    positions = np.array([kind.position(value) for value in on])
    assert abs(positions.mean() - 0.5) < 0.06
    assert (len(on) < 400) == (getattr(kind, "may_be_off", False))


def test_discrete_kinds_sample_all_their_values():
    rng = np.random.default_rng(0)

    widths = {Integers(low=8, high=24, multiple_of=8).sample(rng) for _ in range(99)}
    assert widths == {8, 16, 24}
    assert {PowersOfTwo(low=2, high=8).sample(rng) for _ in range(99)} == {2, 4, 8}
    assert {Choice(options=(True, 1, "a")).sample(rng) for _ in range(99)} == {True, "a"}


def test_conditional_parameter_is_chosen_only_if_its_condition_holds():
    """TUNE-2: the condition may refer to a searched or to a fixed setting."""
    first = {"model.architecture": "gru"}
    picked = space().choose(TrialSettings(), lambda path, _p: first.get(path, 0.25))
    assert "model.dropout" in picked
    first["model.architecture"] = "lstm"
    assert "model.dropout" not in space().choose(
        TrialSettings(), lambda path, _p: first.get(path, 0.25)
    )

    outside = parse(
        model__dropout={
            "kind": "uniform",
            "low": 0.0,
            "high": 0.5,
            "when": {"path": "model.layers", "one_of": [2]},
        }
    )
    assert outside.choose(TrialSettings(), lambda _path, _p: 0.1) == {}
    deep = TrialSettings(model=ModelSettings(layers=2))
    assert outside.choose(deep, lambda _path, _p: 0.1) == {"model.dropout": 0.1}


def test_trial_parameters_change_only_their_settings():
    base = TrialSettings(model=ModelSettings(hidden=48))
    setup = base.with_params({"training.learning_rate": 0.5}, where="Trial 3")

    assert setup.training.learning_rate == 0.5
    assert setup.model == base.model
    assert setup.training.model_copy(update={"learning_rate": 2e-3}) == base.training
    with pytest.raises(SettingsError, match="Trial 3"):
        base.with_params({"training.learning_rate": -1.0}, where="Trial 3")


@pytest.mark.parametrize("architecture", ["gru", "lstm", "slstm", "linear", "transformer", "m:C"])
def test_default_space_is_valid_for_every_architecture(architecture):
    """TUNE-2: weight decay can be off, batch sizes are powers of two, heads divide the width."""
    base = TrialSettings(model=ModelSettings(architecture=architecture))
    search_space = default_space(base)

    assert next(iter(search_space.parameters)) == "training.learning_rate"
    assert search_space.parameters["training.weight_decay"].may_be_off
    assert isinstance(search_space.parameters["training.batch_rows"], PowersOfTwo)
    assert ("model.hidden" in search_space.parameters) == (architecture != "linear")
    if architecture == "transformer":
        assert search_space.parameters["model.hidden"].multiple_of == 4
    for seed in range(20):
        rng = np.random.default_rng(seed)
        base.with_params(
            search_space.choose(base, lambda _path, p, rng=rng: p.sample(rng)), where="t"
        )


OPTIMIZER_ARGUMENT = "training.optimizer_arguments.{}"


def test_optimizer_arguments_and_model_options_apply_only_to_their_owner():
    base = TrialSettings(
        model=ModelSettings(architecture="my:Net", options={"blocks": 2, "act": "relu"}),
        training=TrainSettings(optimizer="sgd", optimizer_arguments={"momentum": 0.9}),
    )
    same = base.with_params(
        {OPTIMIZER_ARGUMENT.format("nesterov"): True, "model.options.blocks": 3}, where="t"
    )
    other = base.with_params(
        {
            "training.optimizer": "adam",
            OPTIMIZER_ARGUMENT.format("betas"): [0.9, 0.99],
            "model.architecture": "gru",
        },
        where="t",
    )

    assert same.training.optimizer_arguments == {"momentum": 0.9, "nesterov": True}
    assert same.model.options == {"blocks": 3, "act": "relu"}
    assert other.training.optimizer_arguments == {"betas": [0.9, 0.99]}
    assert other.model.options == {}
    assert base.value(OPTIMIZER_ARGUMENT.format("momentum")) == 0.9
    assert base.value(OPTIMIZER_ARGUMENT.format("betas")) is None
    assert (base.training.optimizer, base.model.options["blocks"]) == ("sgd", 2)


def test_condition_can_refer_to_the_optimizer():
    search_space = parse(
        training__optimizer={"kind": "choice", "options": ["sgd", "adam"]},
        training__optimizer_arguments__momentum={
            "kind": "uniform",
            "low": 0.0,
            "high": 0.99,
            "when": {"path": "training.optimizer", "one_of": ["sgd"]},
        },
        training__optimizer_arguments__betas={
            "kind": "choice",
            "options": [[0.9, 0.999], [0.9, 0.99]],
            "when": {"path": "training.optimizer", "one_of": ["adam"]},
        },
    )
    for seed in range(20):
        rng = np.random.default_rng(seed)
        params = search_space.choose(TrialSettings(), lambda _path, p, rng=rng: p.sample(rng))
        arguments = TrialSettings().with_params(params, where="t").training.optimizer_arguments
        expected = "momentum" if params["training.optimizer"] == "sgd" else "betas"
        assert list(arguments) == [expected]


def test_tune_choice_is_parsed_as_choice():
    search_space = parse(
        model__architecture={"kind": "tune", "function": "choice", "arguments": [["gru", "lstm"]]}
    )

    assert search_space.parameters["model.architecture"] == Choice(options=("gru", "lstm"))
    assert Space.model_validate_json(search_space.model_dump_json()) == search_space


def test_suggestion_for_an_unknown_parameter_can_be_searched():
    with pytest.raises(
        SettingsError, match=r"gradient_clip' is not a searchable parameter"
    ) as refused:
        Space.parse(
            {"parameters": {"training.gradient_clip": {"kind": "uniform", "low": 1, "high": 2}}},
            where="space",
        )
    assert "training.trace" not in str(refused.value)
