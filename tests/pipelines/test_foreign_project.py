"""Sluice pipelines in a Dagster project that has its own assets and its own IO manager."""

import shutil
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest
import yaml

from sluice.base.home import Home
from sluice.config.pipeline_file import COMPONENT
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import resources
from sluice.pipelines.run import RunReport
from tests.pipelines.conftest import ECHO, home_at

pytestmark = pytest.mark.slow


class FrameIOManager(dg.IOManager):
    """The project's IO manager: accepts only data frames, and keeps them by asset."""

    def __init__(self) -> None:
        self.frames: dict[str, pd.DataFrame] = {}

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        assert isinstance(obj, pd.DataFrame), f"{context.asset_key} is {type(obj).__name__}"
        self.frames[context.asset_key.to_user_string()] = obj

    def load_input(self, context: dg.InputContext) -> object:
        return self.frames[context.asset_key.to_user_string()]


@dg.asset
def prices() -> pd.DataFrame:
    return pd.DataFrame({"close": [1.0, 2.0]})


@dg.asset
def doubled(prices: pd.DataFrame) -> pd.DataFrame:
    return prices * 2


@pytest.fixture
def io_manager() -> FrameIOManager:
    return FrameIOManager()


@pytest.fixture
def foreign_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io_manager: FrameIOManager):
    """Return the definitions of a project with two Sluice pipelines."""
    module = f"foreign_{tmp_path.name}"
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{module}"\n'
    )
    folder = tmp_path / module / "defs"
    for name in ("echo", "loud"):
        (folder / name).mkdir(parents=True)
    (tmp_path / module / "__init__.py").touch()
    (folder / "__init__.py").touch()
    shutil.copy(ECHO, folder / "echo" / "defs.yaml")
    based = {"based_on": "../echo/defs.yaml", "name": "loud"}
    text = yaml.safe_dump({"type": COMPONENT, "attributes": based})
    (folder / "loud" / "defs.yaml").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SLUICE_HOME", raising=False)
    mixed = dg.define_asset_job(
        "mixed",
        dg.AssetSelection.assets("prices", "doubled", ["loud", "raw_data"], ["loud", "features"]),
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=tmp_path),
        dg.Definitions(
            assets=[prices, doubled], jobs=[mixed], resources={"io_manager": io_manager}
        ),
    )


def tick(definitions: dg.Definitions, home: Home, pipeline: str) -> str:
    schedule = definitions.resolve_schedule_def(f"{pipeline}_retrain_schedule")
    state = resources(home)["sluice_state"]
    with (
        open_instance(home) as instance,
        dg.build_schedule_context(instance=instance, resources={"sluice_state": state}) as context,
    ):
        result = schedule.evaluate_tick(context)
    return result.skip_message or result.run_requests[0].tags["sluice/changed"]


def test_sluice_assets_and_project_assets_use_separate_io_managers(
    foreign_project: dg.Definitions, io_manager: FrameIOManager, tmp_path: Path
) -> None:
    home = home_at(tmp_path / ".sluice")
    with open_instance(home) as instance:
        result = foreign_project.resolve_job_def("mixed").execute_in_process(instance=instance)

    assert result.success
    assert set(io_manager.frames) == {"prices", "doubled"}
    assert list(io_manager.frames["doubled"]["close"]) == [2.0, 4.0]
    assert {path.name for path in (home.records / "loud").iterdir()} == {
        "raw_data.json",
        "features.json",
    }


@pytest.mark.exhaustive
def test_schedule_finds_the_candidate_despite_the_io_manager_of_the_project(
    foreign_project: dg.Definitions,
    io_manager: FrameIOManager,
    tmp_path: Path,
    green: tuple[Home, RunReport],
) -> None:
    """The trainings are reused; the training job of the project registers the candidate."""
    home = home_at(tmp_path / ".sluice")
    shutil.copytree(green[0].root, home.root)
    shutil.rmtree(home.records)
    (home.root / "registry.db").unlink()
    assert tick(foreign_project, home, "echo") == "no candidate exists yet"

    with open_instance(home) as instance:
        result = foreign_project.resolve_job_def("echo_training").execute_in_process(
            instance=instance
        )

    assert result.success
    assert io_manager.frames == {}
    assert tick(foreign_project, home, "echo").startswith("Nothing changed since version 1")
    assert tick(foreign_project, home, "loud") == "no candidate exists yet"
