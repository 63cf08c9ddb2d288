"""Two homes on one PostgreSQL registry: what the second one lacks is said before it trains."""

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

    The trainings of that home are there already.
    """
    url = empty_registry(request, tmp_path)
    assert run(echo, dataclasses.replace(green[0], registry_url=url)).production == 1
    return url


@pytest.mark.exhaustive
def test_the_second_home_is_stopped_before_it_trains_and_told_why(
    shared: str, echo: PipelineSettings, run: Runner, tmp_path: Path
) -> None:
    home = dataclasses.replace(home_at(tmp_path / "second"), registry_url=shared)
    other = echo.model_copy(update={"seeds": (10, 11, 12, 13, 14)})

    with pytest.raises(GateBlocked) as caught:
        run(other, home)

    said = str(caught.value)
    assert "poc_report / evaluation_inputs_are_readable" in said
    assert "echo version 1 (in production), but none of its" in said
    assert "is shared, but the artifact folder of this home is not" in said
    assert f"Copy the artifacts folder of that home into {home.artifacts}" in said
    assert materialized(home, other) == {"raw_data", "features", "poc_report"}

    searching = other.model_copy(update={"search": SearchSettings(num_trials=2)})
    searched = materialize_alone(searching, home, "best_config")
    assert not searched.success
    assert "echo version 1 (in production), but none of its" in failure(searched)
    assert materialize_alone(other, home, "best_config").success  # without a search it trains none
    trained = materialize_alone(other, home, "trained_models")
    assert not trained.success
    assert "echo version 1 (in production), but none of its" in failure(trained)
    assert not home.runs.exists()
