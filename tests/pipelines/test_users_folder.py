"""Pipelines outside of the package: imports of their modules, and folders with colliding names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.base.errors import SettingsError
from sluice.config.pipeline import read_pipeline

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODULE = """
import numpy as np
import pandas as pd
from sluice.data.schema import Column, Schema
from sluice.workloads.workload import Workload
from {name}_helper import SCALE


class Demand(Workload):
    raw_schema = Schema(columns=(Column(name="x"),))
    feature_schema = Schema(columns=(Column(name="x"), Column(name="y")))
    feature_columns = ("x",)
    target_column = "y"

    def load_rows(self):
        x, noise = np.random.default_rng(0).normal(size=(2, 900))
        return pd.DataFrame({{"x": x, "seen": SCALE * x + noise}})

    def compute_features(self, raw):
        return raw[["x"]].assign(y=raw["seen"])

    def baseline(self, frame, fold):
        return super().baseline(frame, fold)
"""
PIPELINE = """
type: sluice.pipelines.component.ModelPipeline
attributes:
  name: {name}
  workload: {name}:Demand
  workload_settings: {{folds: {{num_folds: 2}}}}
  model: {{architecture: linear}}
  training: {{max_epochs: 6, learning_rate: 0.1, batch_rows: 64, trace: false}}
  seeds: [0, 1, 2, 3, 4]
  tracking: {{mode: "off"}}
"""


def project(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text(MODULE.format(name=name))
    (folder / f"{name}_helper.py").write_text("SCALE = 2.0\n")
    file = folder / f"{name}.yaml"
    file.write_text(PIPELINE.format(name=name))
    return file


def sluice(*arguments: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sluice", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["poc", pytest.param("run", marks=pytest.mark.exhaustive)])
def test_modules_beside_the_pipeline_file_are_imported_from_any_folder(
    tmp_path: Path, command: str
) -> None:
    """The gate imports them in a separate process, also during a run."""
    file = project(tmp_path / "models" / "demand", "sluice_probe_demand")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    options = {"poc": ["--minimum"], "run": ["--no-rehearsal"]}[command]
    done = sluice(command, str(file), *options, cwd=elsewhere)

    assert done.returncode == 0, done.stderr
    assert ("PROMOTED" in done.stdout) == (command == "run")


def test_two_modules_with_the_same_name_are_refused(tmp_path: Path) -> None:
    first = project(tmp_path / "a", "sluice_probe_twice")
    second = project(tmp_path / "b", "sluice_probe_twice")
    path = list(sys.path)
    try:
        read_pipeline(first)
        with pytest.raises(SettingsError, match="this process already uses"):
            read_pipeline(second)
    finally:
        sys.path[:] = path


@pytest.mark.parametrize("has_init", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_user_folders_with_names_of_sluice_packages_break_no_command(
    tmp_path: Path, has_init: bool
) -> None:
    file = project(tmp_path / "here", "sluice_probe_named")
    for name in ("assets", "checks", "pipelines"):
        (file.parent / name).mkdir()
        if has_init:
            (file.parent / name / "__init__.py").write_text("raise SystemExit('not ours')\n")

    help_result = sluice("--help", cwd=file.parent)
    list_result = sluice("list", cwd=file.parent)
    poc_result = sluice("poc", file.name, "--minimum", cwd=file.parent)

    assert (help_result.returncode, list_result.returncode) == (0, 0), (
        help_result.stderr + list_result.stderr
    )
    assert poc_result.returncode == 0, poc_result.stderr


LOAD = """
from sluice.pipelines.definitions import defs
repository = defs().get_repository_def()
for key in sorted("/".join(k.path) for k in repository.asset_graph.get_all_asset_keys()):
    print(key)
print(repository.asset_graph.get(next(k for k in repository.asset_graph.get_all_asset_keys()
    if k.path[-1] == "not_loaded")).description)
"""


def test_ui_loads_only_the_named_files_and_reports_a_broken_one(tmp_path: Path) -> None:
    good = project(tmp_path / "good", "sluice_probe_good")
    bad = project(tmp_path / "bad", "sluice_probe_bad")
    bad.write_text(bad.read_text().replace("max_epochs", "max_epoch"))
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "SLUICE_PIPELINES": os.pathsep.join([str(bad), str(good)])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    keys = done.stdout.splitlines()
    assert "sluice_probe_good/candidate" in keys
    assert "digits/candidate" not in keys
    assert "sluice_probe_bad/not_loaded" in keys
    assert "'training.max_epoch' is not a setting. Did you mean 'max_epochs'?" in done.stdout
