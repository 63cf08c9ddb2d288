"""A real state folder and one short run of the whole line, shared by the tests of a module."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from rich.console import Console

from pipelines.console import RunConsole
from pipelines.instance import open_instance
from pipelines.run import RunReport, run_pipeline
from sluice.home import Home
from sluice.pipeline import PipelineSettings, read_pipeline

WAVES = Path(__file__).parents[1] / "support" / "waves.yaml"

Runner = Callable[[PipelineSettings, Home], RunReport]


@pytest.fixture(scope="session")
def waves() -> PipelineSettings:
    return read_pipeline(WAVES)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.from_environment({"SLUICE_HOME": str(tmp_path / "home")}, cwd=tmp_path)


@pytest.fixture
def instance(home: Home) -> Iterator[dg.DagsterInstance]:
    with open_instance(home) as opened:
        yield opened


@pytest.fixture
def run() -> Runner:
    def run_it(pipeline: PipelineSettings, home: Home) -> RunReport:
        with RunConsole(Console(stderr=True)) as console:
            return run_pipeline(pipeline, home, console, started=time.perf_counter())

    return run_it
