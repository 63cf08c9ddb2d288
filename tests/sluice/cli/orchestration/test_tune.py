"""``sluice tune``: options that override the file, and the settings it prints for the file."""

from pathlib import Path

import pytest
import yaml

from sluice.base.errors import SettingsError
from sluice.cli.orchestration.tune import with_search
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainingChange, TrainSettings
from sluice.tuning.schedule_to_settings import changed_settings, settings_yaml
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import TrialSettings


def test_options_override_the_file_and_keep_other_settings(echo: PipelineSettings) -> None:
    searching = echo.model_copy(update={"search": SearchSettings(num_trials=50, grace_epochs=3)})

    found = with_search(
        resolve(searching), search={"num_trials": 7}, compute={"address": "auto"}
    ).settings

    assert (found.search.num_trials, found.search.grace_epochs) == (7, 3)
    assert (found.compute.address, found.compute.workers) == ("auto", 1)


def test_pipeline_without_a_search_gets_the_default_search(echo: PipelineSettings) -> None:
    assert with_search(resolve(echo), search={}, compute={}).settings.search == SearchSettings()


@pytest.mark.parametrize(
    "path", ["ray.tune.schedulers:ASHAScheduler", "ray.tune.schedulers.FIFOScheduler"]
)
def test_scheduler_option_accepts_the_import_path_of_a_class(echo, path) -> None:
    found = with_search(resolve(echo), search={"scheduler": path}, compute={}).settings
    assert (found.search.scheduler.path, found.search.scheduler.arguments) == (path, {})


@pytest.mark.parametrize(
    ("search", "compute", "message"),
    [
        (
            {"scheduler": "ray.tune.schedulers:ASHA"},
            {},
            r"module ray.tune.schedulers has no 'ASHA'",
        ),
        (
            {"scheduler": "hyperband"},
            {},
            r"search: .*scheduler.*'auto', 'asha', 'pbt', 'median' or 'none'",
        ),
        ({"num_trials": 1}, {}, r"search: .*num_trials.*greater than or equal to 2"),
        ({}, {"gpus_per_worker": -1.0}, r"compute: .*gpus_per_worker.*greater than or equal to 0"),
    ],
)
def test_invalid_option_is_refused_by_name(echo, search, compute, message) -> None:
    with pytest.raises(SettingsError, match=message):
        with_search(resolve(echo), search=search, compute=compute)


def test_found_settings_have_the_form_of_the_pipeline_file() -> None:
    base = TrialSettings(training=TrainSettings(learning_rate=0.1))
    found = TrialSettings(training=TrainSettings(learning_rate=0.02, batch_rows=64))

    changed = changed_settings(base, found)

    assert yaml.safe_load(settings_yaml(changed)) == {
        "training": {"learning_rate": 0.02, "batch_rows": 64}
    }
    assert changed_settings(base, base) == {}


def test_schedule_found_by_pbt_is_written_without_nulls_and_parses_back() -> None:
    base = TrialSettings(training=TrainSettings(learning_rate=0.1))
    training = base.training.model_copy(
        update={"changes": (TrainingChange(from_epoch=5, learning_rate=0.05),)}
    )
    changed = changed_settings(base, base.model_copy(update={"training": training}))

    assert changed == {"training": {"changes": [{"from_epoch": 5, "learning_rate": 0.05}]}}
    written = yaml.safe_load(settings_yaml(changed))["training"]
    assert TrainSettings.parse({"learning_rate": 0.1} | written, where="test") == training


def test_found_default_optimizer_is_written_with_its_arguments() -> None:
    base = TrialSettings(
        training=TrainSettings(optimizer="sgd", optimizer_arguments={"momentum": 0.9}),
        model=ModelSettings(architecture="my_model:Net", options={"width": 3}),
    )
    found = TrialSettings(
        model=base.model.model_copy(update={"options": {"width": 4, "deep": True}})
    )

    assert changed_settings(base, found) == {
        "model": {"options": {"width": 4, "deep": True}},
        "training": {"optimizer": "adamw", "optimizer_arguments": {}},
    }


def test_setting_with_a_schedule_in_the_file_cannot_be_searched(echo) -> None:
    change = TrainingChange(from_epoch=2, learning_rate=0.05)
    training = echo.training.model_copy(update={"changes": (change,)})
    with pytest.raises(SettingsError, match=r"learning_rate' cannot be searched while"):
        with_search(resolve(echo.model_copy(update={"training": training})), search={}, compute={})


def test_search_example_of_the_guide_is_valid(echo: PipelineSettings) -> None:
    guide = Path(__file__).parents[4] / "docs" / "how-to" / "search-for-settings.md"
    written = yaml.safe_load(guide.read_text().partition("```yaml")[2].partition("```")[0])

    own = echo.model_dump(mode="python", exclude={"search", "space"}) | written
    pipeline = PipelineSettings.parse(own, where=str(guide))

    assert pipeline.search.num_trials == 50
    assert next(iter(pipeline.space.parameters)) == "training.learning_rate"


def test_found_workload_and_optimizer_settings_have_the_form_of_the_pipeline_file() -> None:
    base = TrialSettings(workload_settings={"seq_len": 8, "noise": 0.1})
    found = base.with_params(
        {
            "workload.seq_len": 12,
            "training.optimizer": "sgd",
            "training.optimizer_arguments.momentum": 0.9,
            "model.options.blocks": 3,
        },
        where="test",
    )

    assert changed_settings(base, found) == {
        "model": {"options": {"blocks": 3}},
        "training": {"optimizer": "sgd", "optimizer_arguments": {"momentum": 0.9}},
        "workload_settings": {"seq_len": 12},
    }
