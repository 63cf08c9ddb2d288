"""A process instantiates the user's workload class once, for a run or for schedule ticks."""

import dagster as dg
import pytest

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import resources
from tests.pipelines.conftest import Runner
from tests.support.counted import BuildCounter

pytestmark = pytest.mark.slow

SEPARATE_MODULES = {"fold_run_spec", "loading"}
"""Modules that build the workload for a fold run or a registered version."""


def count_builds() -> dict[str, int]:
    return {
        name: n for name, n in BuildCounter.builds_by_module.items() if name not in SEPARATE_MODULES
    }


@pytest.mark.exhaustive
def test_process_builds_the_users_class_once(
    short_echo: PipelineSettings, run: Runner, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BuildCounter, "builds_by_module", type(BuildCounter.builds_by_module)())
    training = short_echo.training.model_copy(update={"max_epochs": 2})
    counted = "tests.support.counted:BuildCounter"
    pipeline = short_echo.model_copy(update={"workload": counted, "training": training})

    run(pipeline, home)

    assert BuildCounter.builds_by_module["fold_run_spec"] > 0
    assert count_builds() == {"resolved": 1}

    bound = resources(home)
    definitions = dg.Definitions.merge(
        build_definitions(resolve(pipeline)), dg.Definitions(resources=bound)
    )
    schedule = definitions.resolve_schedule_def("echo_retrain_schedule")
    state = {"sluice_state": bound["sluice_state"]}
    with open_instance(home) as instance:
        for _ in range(2):
            with dg.build_schedule_context(instance=instance, resources=state) as context:
                assert "Nothing changed" in str(schedule.evaluate_tick(context).skip_message)

    assert count_builds() == {"resolved": 2}
