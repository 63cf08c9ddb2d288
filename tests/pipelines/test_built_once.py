"""A process builds the user's class once, whatever it runs: the line, or ticks of a schedule."""

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

OPENED_BY_THEMSELVES = {"fold_run", "loading"}
"""Modules that open the specification of a fold run, or the one of a registered version."""


def builds() -> dict[str, int]:
    return {name: n for name, n in BuildCounter.builds.items() if name not in OPENED_BY_THEMSELVES}


@pytest.mark.exhaustive
def test_a_process_builds_the_users_class_once(
    short_echo: PipelineSettings, run: Runner, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BuildCounter, "builds", type(BuildCounter.builds)())
    training = short_echo.training.model_copy(update={"max_epochs": 2})
    counted = "tests.support.counted:BuildCounter"
    pipeline = short_echo.model_copy(update={"workload": counted, "training": training})

    run(pipeline, home)

    assert BuildCounter.builds["fold_run"] > 0
    assert builds() == {"resolved": 1}

    given = resources(home)
    definitions = dg.Definitions.merge(
        build_definitions(resolve(pipeline)), dg.Definitions(resources=given)
    )
    schedule = definitions.resolve_schedule_def("echo_retrain_schedule")
    state = {"sluice_state": given["sluice_state"]}
    with open_instance(home) as instance:
        for _ in range(2):
            with dg.build_schedule_context(instance=instance, resources=state) as context:
                assert "Nothing changed" in str(schedule.evaluate_tick(context).skip_message)

    assert builds() == {"resolved": 2}
