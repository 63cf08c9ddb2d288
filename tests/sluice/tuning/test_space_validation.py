"""TUNE-2: a space with a width that is not a multiple of the heads is rejected early."""

import numpy as np
import pytest

from sluice.base.errors import SettingsError
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainingChange, TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.space_validation import require_trainable
from sluice.tuning.spaces import Space, TrialSettings
from tests.sluice.tuning.toy_space import search

TRANSFORMER = {"architecture": "transformer"}


def integers(low, high, multiple_of=1, **more):
    return {"kind": "integers", "low": low, "high": high, "multiple_of": multiple_of, **more}


def choice(*options, **more):
    return {"kind": "choice", "options": list(options), **more}


def powers(low, high):
    return {"kind": "powers_of_two", "low": low, "high": high}


def when(path, *values):
    return {"when": {"path": f"model.{path}", "one_of": list(values)}}


def validate(model=TRANSFORMER, **parameters):
    named = {f"model.{name}": value for name, value in parameters.items()}
    space = Space.parse({"parameters": named}, where="space")
    base = TrialSettings(model=ModelSettings.parse(dict(model), where="model"))
    require_trainable(space, base)
    return space, base


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hidden": integers(8, 64, 2)}, "of 4 .*heads: 4.* contains 10. .*multiple_of .* to 4,"),
        ({"hidden": integers(6, 66, 6)}, "contains 6. .*multiple_of .* to 4 or 8,"),
        ({"hidden": choice(8, 18)}, "contains 18. .*to 16 or 20 instead of 18"),
        ({"hidden": choice(8, 3)}, "contains 3. .*to 4 instead of 3"),
        ({"hidden": powers(2, 64)}, "contains 2. .*integers with multiple_of 4"),
        (
            {"heads": choice(4, 6), "hidden": integers(8, 64, 4)},
            "of 12 .*heads: 4, 6.* contains 8. .*multiple_of .* to 12,",
        ),
        ({"heads": choice(4, 6)}, "of 12 .* contains 32. .*to 24 or 36 instead of 32"),
        ({"heads": powers(1, 16), "hidden": integers(8, 64, 8)}, "of 16 .* contains 8"),
        ({"architecture": choice("lstm", "transformer"), "hidden": choice(30, 8)}, "contains 30"),
        (
            {"layers": integers(1, 3), "hidden": choice(8, 16, **when("layers", 2))},
            None,
        ),
        (
            {"layers": integers(1, 3), "heads": choice(8, 2, **when("layers", 2))}
            | {"hidden": integers(4, 64, 4)},
            "of 8 .*heads: 2, 4, 8",
        ),
    ],
)
def test_invalid_width_is_rejected_with_the_nearest_valid_one(parameters, message):
    if message is None:
        validate(**parameters)
        return
    with pytest.raises(SettingsError, match=message):
        validate(**parameters)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (TRANSFORMER, {"hidden": integers(8, 64, 4)}),
        (TRANSFORMER, {"hidden": integers(24, 96, 24), "heads": choice(4, 6, 8)}),
        (TRANSFORMER, {"hidden": powers(16, 64), "heads": powers(1, 16)}),
        ({"architecture": "gru"}, {"hidden": integers(7, 9)}),
        ({"architecture": "my:Net"}, {"hidden": choice(7, 9), "heads": choice(2, 4)}),
        # Parameters of another architecture are irrelevant for this one.
        (
            {"architecture": "gru"},
            {
                "architecture": choice("gru", "transformer"),
                "heads": choice(2, 8, **when("architecture", "transformer")),
                "layers": integers(1, 3, **when("architecture", "gru")),
            },
        ),
        (
            {"architecture": "gru"},
            {
                "architecture": choice("gru", "transformer"),
                "hidden": integers(7, 9, **when("architecture", "gru")),
            },
        ),
        (
            {"architecture": "gru", "hidden": 36},
            {
                "architecture": choice("gru", "transformer"),
                "heads": choice(3, 6, **when("architecture", "transformer")),
            },
        ),
    ],
)
def test_every_trial_of_a_valid_space_has_valid_settings(model, parameters):
    """Oracle: the settings class, which rejects a width that is not a multiple of the heads."""
    space, base = validate(model, **parameters)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        params = space.choose(base, lambda _path, p, rng=rng: p.sample(rng))
        setup = base.with_params(params, where="t")
        assert {path: setup.value(path) for path in params} == params


@pytest.mark.parametrize("heads", [1, 3, 4, 8, 12, 64, 1024])
def test_default_space_is_valid_for_any_number_of_heads(heads):
    base = TrialSettings(model=ModelSettings(architecture="transformer", hidden=heads, heads=heads))
    space = default_space(base)
    require_trainable(space, base)

    assert space.parameters["model.hidden"].multiple_of == heads


def test_searched_setting_that_a_training_change_overrides_is_rejected():
    base = TrialSettings(
        training=TrainSettings(changes=(TrainingChange(from_epoch=3, clip_norm=1.0),))
    )
    rate = {"kind": "log_uniform", "low": 1e-4, "high": 1e-1}
    require_trainable(
        Space.parse({"parameters": {"training.learning_rate": rate}}, where="s"), base
    )
    with pytest.raises(SettingsError, match=r"'training\.clip_norm' cannot be searched .* epoch 3"):
        require_trainable(
            Space.parse({"parameters": {"training.clip_norm": rate}}, where="s"), base
        )


def test_pipeline_file_with_an_invalid_width_is_rejected():
    attributes = {
        "name": "sine",
        "workload": "tests.support.synthetic:SineWorkload",
        "model": {"architecture": "transformer", "heads": 8},
        "space": {"parameters": {"model.hidden": integers(8, 64, 4)}},
    }
    with pytest.raises(SettingsError, match=r"defs.yaml: .*heads: 8.* contains 12\. .*to 8"):
        PipelineSettings.parse(attributes, where="defs.yaml")


@pytest.mark.parametrize(
    ("training", "search_of", "message"),
    [
        ({"changes": [{"from_epoch": 3, "learning_rate": 0.1}]}, {}, "learning_rate' cannot be"),
        ({"max_epochs": 5}, {"scheduler": "pbt"}, "every 5 epochs"),
        ({"changes": [{"from_epoch": 3, "clip_norm": 1.0}]}, {}, None),
        (
            {"changes": [{"from_epoch": 3, "learning_rate": 0.1}]},
            {"space": {"model.hidden": integers(8, 64)}},
            None,
        ),
    ],
)
def test_search_of_the_default_space_is_validated_when_the_file_is_read(
    training, search_of, message
):
    """Otherwise it would be rejected only after loading the rows and passing the POC gate."""
    more = dict(search_of)
    parameters = more.pop("space", None)
    attributes = {
        "name": "sine",
        "workload": "tests.support.synthetic:SineWorkload",
        "training": training,
        "search": more,
    } | ({"space": {"parameters": parameters}} if parameters else {})
    if message is None:
        PipelineSettings.parse(attributes, where="defs.yaml")
        return
    with pytest.raises(SettingsError, match=rf"defs.yaml: .*{message}"):
        PipelineSettings.parse(attributes, where="defs.yaml")
    PipelineSettings.parse(attributes | {"search": None}, where="defs.yaml")


def test_search_in_an_invalid_space_does_not_start(tmp_path):
    search_space = Space.parse(
        {
            "parameters": {
                "model.architecture": choice("gru", "transformer"),
                "model.hidden": choice(8, 9),
            }
        },
        where="space",
    )
    with pytest.raises(SettingsError, match="contains 9"):
        search(tmp_path / "search", own_space=search_space)
    assert not (tmp_path / "search").exists()


SINE = {"name": "sine", "workload": "tests.support.synthetic:SineWorkload"}


def sine(parameters, **more):
    space = {"space": {"parameters": parameters}}
    return PipelineSettings.parse(SINE | space | more, where="defs.yaml")


def test_searched_workload_settings_start_at_their_configured_or_default_values():
    names = {"workload.seq_len": integers(4, 16), "workload.noise": choice(0.0, 0.1)}
    pipeline = sine(names, workload_settings={"noise": 0.1, "num_rows": 99})
    inputs = resolve(pipeline).search
    found = inputs.trial_settings.with_params({"workload.seq_len": 12}, where="t")

    assert inputs.trial_settings.workload_settings == {"seq_len": 8, "noise": 0.1}
    assert found.workload_settings == {"seq_len": 12, "noise": 0.1}
    configured = inputs.base.with_settings(found)
    assert configured.workload_settings == {"noise": 0.1, "num_rows": 99, "seq_len": 12}
    assert configured.workload.settings.seq_len == 12
    assert configured.config_digest != inputs.base.config_digest
    assert inputs.base.with_settings(inputs.trial_settings).workload is inputs.base.workload


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"workload.seq_length": integers(4, 16)},
            "not a setting of the workload. Did you mean 'se",
        ),
        ({"workload.seq_len": integers(0, 16)}, "'workload.seq_len' cannot be 0"),
        ({"workload.noise": choice("loud", "low")}, "'workload.noise' cannot be 'loud'"),
        (
            {"model.dropout": {"kind": "uniform", "low": 0.0, "high": 0.1}}
            | {"model.hidden": integers(4, 8) | {"when": {"path": "workload.nose", "one_of": [1]}}},
            "'workload.nose' is not a setting",
        ),
    ],
)
def test_invalid_workload_setting_is_rejected_when_the_workload_is_built(parameters, message):
    pipeline = sine(parameters)
    with pytest.raises(SettingsError, match=message):
        resolve(pipeline)


def test_space_with_workload_settings_is_also_checked_for_the_network():
    names = {"workload.seq_len": integers(4, 16), "model.hidden": choice(8, 18)}
    pipeline = sine(names, model=TRANSFORMER)
    with pytest.raises(SettingsError, match="contains 18"):
        resolve(pipeline)


def test_searched_optimizer_argument_that_a_training_change_overrides_is_rejected():
    training = TrainSettings(
        optimizer="sgd",
        changes=(TrainingChange(from_epoch=3, optimizer_arguments={"momentum": 0.5}),),
    )
    path = "training.optimizer_arguments.momentum"
    search_space = Space.parse(
        {"parameters": {path: {"kind": "uniform", "low": 0.0, "high": 0.9}}}, where="s"
    )
    with pytest.raises(SettingsError, match=r"momentum' cannot be searched .* epoch 3"):
        require_trainable(search_space, TrialSettings(training=training))
