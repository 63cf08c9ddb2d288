"""A wheel of Sluice in the Dagster projects of users: scaffold, check, launch and UI."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.test_wheel import call, installed, query_ui, wheel

__all__ = ["installed", "wheel"]

pytestmark = pytest.mark.exhaustive

DG = "import sys; from dagster_dg_cli.cli import main; sys.argv[0] = 'dg'; main()"

DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""

OWN_ASSETS = """
import dagster as dg
import numpy as np
import pandas as pd


class FrameIOManager(dg.ConfigurableIOManager):
    def handle_output(self, context, obj):
        assert isinstance(obj, pd.DataFrame), f"{context.asset_key} is {type(obj).__name__}"
        obj.to_parquet("_".join(context.asset_key.path) + ".parquet")

    def load_input(self, context):
        return pd.read_parquet("_".join(context.asset_key.path) + ".parquet")


@dg.asset(key=["shop", "prices"])
def prices() -> pd.DataFrame:
    area, age = np.random.default_rng(0).uniform(30, 180, (2, 600))
    return pd.DataFrame({"area": area, "age": age, "price": 2 * area - age})


@dg.asset(ins={"model": dg.AssetIn(key=["flats", "production_model"])})
def announcement(model) -> pd.DataFrame:
    return pd.DataFrame({"version": [model["version"]]})


@dg.definitions
def defs() -> dg.Definitions:
    keys = ["shop", "prices"], ["flats", "raw_data"], ["flats", "features"]
    job = dg.define_asset_job(
        "mixed", dg.AssetSelection.assets(*keys), executor_def=dg.multiprocess_executor
    )
    return dg.Definitions(
        assets=[prices, announcement],
        jobs=[job],
        resources={"io_manager": FrameIOManager()},
    )
"""

OLD_DEFINITIONS = """
from pathlib import Path

import dagster as dg

from assets.bikes import bikes
from checks.bikes import bikes_exist


@dg.definitions
def defs():
    own = dg.Definitions(assets=[bikes], asset_checks=[bikes_exist])
    return dg.Definitions.merge(
        own, dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    )
"""


class Project:
    """A project folder whose packages are importable in the environment of the wheel."""

    def __init__(self, root: Path, bin_folder: Path, *, module: str, source: str) -> None:
        self.root, self.bin, self.module = root, bin_folder, module
        self.defs = root / source / module / "defs"
        self.defs.mkdir(parents=True)
        self.home = root / "dagster_home"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        for folder in (self.defs, self.defs.parent):
            (folder / "__init__.py").touch()
        self.write("pyproject.toml", _render_pyproject(module))
        self.write(f"{source}/{module}/definitions.py", DEFINITIONS)
        site = Path(
            call(
                str(bin_folder / "python"),
                "-c",
                "import sysconfig; print(sysconfig.get_path('purelib'))",
                cwd=root,
            ).strip()
        )
        (site / f"{root.name}.pth").write_text(f"{root / source}\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())

    @property
    def environ(self) -> dict[str, str]:
        tools = sysconfig.get_path("scripts")
        return {
            "VIRTUAL_ENV": str(self.bin.parent),
            "PATH": os.pathsep.join([str(self.bin), tools, os.environ["PATH"]]),
            "DAGSTER_HOME": str(self.home),
        }

    def dg(self, *arguments: str) -> str:
        python = str(self.bin / "python")
        return call(python, "-c", DG, *arguments, cwd=self.root, **self.environ)

    def python(self, *arguments: str) -> str:
        return call(str(self.bin / "python"), *arguments, cwd=self.root, **self.environ)

    def recorded_stages(self, pipeline: str) -> set[str]:
        return {path.stem for path in (self.root / ".sluice" / "records" / pipeline).iterdir()}


def _render_pyproject(module: str) -> str:
    return f"""
        [project]
        name = "{module}"
        version = "0.1.0"

        [tool.dg]
        directory_type = "project"

        [tool.dg.project]
        root_module = "{module}"
        registry_modules = ["{module}.components.*"]
        """


def test_pipeline_runs_in_an_empty_project(installed: Path, tmp_path: Path) -> None:
    project = Project(tmp_path / "empty", installed, module="empty_project", source="src")

    assert "sluice.ModelPipeline" in project.dg("list", "components")
    project.dg("scaffold", "defs", "sluice.ModelPipeline", "photos", "--template", "images")
    assert "validated successfully" in project.dg("check", "yaml")
    assert "loaded successfully" in project.dg("check", "defs")
    project.dg("launch", "--assets", "photos/raw_data,photos/features")

    assert project.recorded_stages("photos") == {"raw_data", "features"}
    test = "src/empty_project/defs/photos/test_photos.py"
    assert "2 passed" in project.python("-m", "pytest", "-q", "-p", "no:cacheprovider", test)


def test_pipelines_run_beside_own_assets_and_io_manager(
    installed: Path,
    tmp_path: Path,
) -> None:
    project = Project(tmp_path / "own", installed, module="own_project", source="src")
    project.write("src/own_project/defs/assets.py", OWN_ASSETS)
    project.dg("scaffold", "defs", "sluice.ModelPipeline", "flats", "--template", "regression")
    project.dg("scaffold", "defs", "sluice.ModelPipeline", "sales", "--template", "tabular")
    file = project.defs / "flats" / "defs.yaml"
    document = yaml.safe_load(file.read_text())
    source = {"kind": "asset", "key": ["shop", "prices"]}
    document["attributes"]["workload_settings"]["source"] = source
    file.write_text(yaml.safe_dump(document))

    project.python(
        "-m", "dagster", "job", "execute", "-m", "own_project.definitions", "-j", "mixed"
    )

    assert project.recorded_stages("flats") == {"raw_data", "features"}
    assert (project.root / "shop_prices.parquet").exists()
    with dev_server(project) as address:
        reply = query_ui(address, max_wait_s=240)["data"]["repositoriesOrError"]  # type: ignore[index]
    assert "nodes" in reply, json.dumps(reply)[:2000]
    keys = {"/".join(a["assetKey"]["path"]) for node in reply["nodes"] for a in node["assetNodes"]}
    assert {"announcement", "shop/prices", "flats/candidate", "sales/production_model"} <= keys


def test_pipeline_runs_in_a_project_with_the_old_layout(installed: Path, tmp_path: Path) -> None:
    project = Project(tmp_path / "old", installed, module="pipelines", source=".")
    for name in ("assets", "checks"):
        project.write(f"{name}/__init__.py", "")
    project.write(
        "assets/bikes.py",
        """
        import dagster as dg


        @dg.asset
        def bikes() -> int:
            return 7
        """,
    )
    project.write(
        "checks/bikes.py",
        """
        import dagster as dg


        @dg.asset_check(asset="bikes")
        def bikes_exist() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=True)
        """,
    )
    project.write("pipelines/definitions.py", OLD_DEFINITIONS)

    project.dg(
        "scaffold", "defs", "sluice.ModelPipeline", "rentals", "--template", "classification"
    )
    assert "loaded successfully" in project.dg("check", "defs")
    project.dg("launch", "--assets", "bikes,rentals/raw_data")

    assert project.recorded_stages("rentals") == {"raw_data"}


@contextlib.contextmanager
def dev_server(project: Project) -> Iterator[str]:
    """Run ``dg dev`` and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLUICE", "DAGSTER"))
    }
    command = [str(project.bin / "python"), "-c", DG, "dev", "--port", str(port)]
    with (project.root / "dev.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=project.root,
            env=environ | project.environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
