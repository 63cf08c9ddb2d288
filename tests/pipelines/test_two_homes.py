"""Two homes share a PostgreSQL registry; missing artifacts of the second stop its training."""

import dataclasses
from pathlib import Path

import pytest

from sluice.base.errors import GateBlocked
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.run import RunReport
from sluice.tuning.settings import SearchSettings
from tests.pipelines.conftest import Runner, home_at
from tests.pipelines.test_line import failure, materialize_alone, materialized
from tests.sluice.registry.conftest import empty_registry
from tests.sluice.registry.conftest import postgres_server as postgres_server

pytestmark = pytest.mark.slow


@pytest.fixture(params=["postgresql"])
def shared(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    green: tuple[Home, RunReport],
    echo: PipelineSettings,
    run: Runner,
) -> str:
    """Return the URL of a registry in which another home has a version in production.

    The trainings of that home are reused.
    """
    url = empty_registry(request, tmp_path)
    assert run(echo, dataclasses.replace(green[0], registry_url=url)).production == 1
    return url


@pytest.mark.exhaustive
def test_second_home_without_artifacts_is_stopped_before_training(
    shared: str, echo: PipelineSettings, run: Runner, tmp_path: Path
) -> None:
    home = dataclasses.replace(home_at(tmp_path / "second"), registry_url=shared)
    other = echo.model_copy(update={"seeds": (10, 11, 12, 13, 14)})

    with pytest.raises(GateBlocked) as caught:
        run(other, home)

    message = str(caught.value)
    assert "poc_report / evaluation_inputs_are_readable" in message
    assert "echo version 1 (in production), but none of its" in message
    assert "is shared, but the artifact folder of this home is not" in message
    assert f"Copy the artifacts folder of that home into {home.artifacts}" in message
    assert materialized(home, other) == {"raw_data", "features", "poc_report"}

    searching = other.model_copy(update={"search": SearchSettings(num_trials=2)})
    searched = materialize_alone(searching, home, "best_config")
    assert not searched.success
    assert "echo version 1 (in production), but none of its" in failure(searched)
    # Without a search, best_config trains nothing.
    assert materialize_alone(other, home, "best_config").success
    trained = materialize_alone(other, home, "trained_models")
    assert not trained.success
    assert "echo version 1 (in production), but none of its" in failure(trained)
    assert not home.runs.exists()
