"""Commands execute no file of the working folder because of its name alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.base import imports
from sluice.base.errors import SettingsError
from sluice.base.imports import add_pipeline_folder, import_object
from tests.pipelines.test_users_folder import project

ROOT = Path(__file__).resolve().parents[1]
SHADOWS = (
    *("random", "json", "typing", "signal", "logging", "sqlite3", "sitecustomize"),
    *("usercustomize", "yaml", "torch", "numpy", "pandas", "dagster", "ray", "typer"),
)
PIPELINE_NAME = "sluice_probe_planted"


@pytest.fixture
def pipeline_file(tmp_path: Path) -> Path:
    """A pipeline file in a folder whose other modules write a marker when they are executed."""
    file = project(tmp_path / "here", PIPELINE_NAME)
    for name in SHADOWS:
        marker = f"open({str(tmp_path / 'executed')!r}, 'a').write('{name} ')\n"
        (file.parent / f"{name}.py").write_text(marker + "raise SystemExit('not ours')\n")
    return file


def executed_modules(pipeline_file: Path) -> str:
    marker = pipeline_file.parents[1] / "executed"
    return marker.read_text() if marker.exists() else ""


def run_python(*arguments: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", [("list",), ("registry", "list"), ("doctor",)])
def test_command_executes_no_module_of_the_working_folder(
    pipeline_file: Path, command: tuple[str, ...]
) -> None:
    done = run_python("-m", "sluice", *command, cwd=pipeline_file.parent)

    assert executed_modules(pipeline_file) == ""
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_poc_command_imports_the_pipelines_own_module(pipeline_file: Path) -> None:
    done = run_python(
        "-m", "sluice", "poc", pipeline_file.name, "--minimum", cwd=pipeline_file.parent
    )

    assert executed_modules(pipeline_file) == ""
    assert done.returncode == 0, done.stderr


LOCATION = """
from dagster._core.code_pointer import ModuleCodePointer
import os, sys
defs = ModuleCodePointer("sluice.pipelines.definitions", "defs", os.environ["DAGSTER_HOME"])
repository = defs.load_target()().get_repository_def()
print(*{key.path[0] for key in repository.asset_graph.get_all_asset_keys()})
"""


@pytest.mark.slow
def test_code_server_imports_only_the_pipelines_own_module(pipeline_file: Path) -> None:
    """It has the environment of ``sluice dev`` and loads the definitions as Dagster does."""
    home = pipeline_file.parents[1] / "dagster"
    home.mkdir()
    done = run_python(
        *("-c", LOCATION),
        cwd=pipeline_file.parent,
        PYTHONSAFEPATH="1",
        PYTHONPATH=os.pathsep.join([str(home), str(ROOT)]),
        DAGSTER_HOME=str(home),
        SLUICE_PIPELINES=str(pipeline_file),
    )

    assert executed_modules(pipeline_file) == ""
    assert done.returncode == 0, done.stderr
    assert {PIPELINE_NAME} == set(done.stdout.split())


def test_started_processes_do_not_search_the_working_folder_first() -> None:
    """Python searches it first with -c and -m, but not with -P and not in multiprocessing."""
    starts = re.compile(r'sys\.executable, "-[cm]"')
    files = [
        p
        for name in ("sluice", "assets", "checks", "pipelines")
        for p in (ROOT / name).rglob("*.py")
    ]
    safe = [p for p in files if re.search(r'sys\.executable, "-P"', p.read_text())]

    assert len(safe) > 5
    assert [str(p) for p in files if starts.search(p.read_text())] == []


def test_users_module_hidden_by_another_module_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tabnanny.py").write_text("class Model: ...\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match=r"finds another module of that name first: .*tabnanny"):
        add_pipeline_folder(tmp_path, ["tabnanny:Model"])
    with pytest.raises(SettingsError, match=r"Python imported .* and not .*tabnanny\.py"):
        import_object("tabnanny:Model", what="workload")


def test_user_folders_are_searched_last_and_the_pipeline_folder_before_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_folders = set(imports._search_folders)  # added by earlier tests in this process
    monkeypatch.setattr(imports, "_search_folders", [])
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if folder not in earlier_folders]
    )
    before = list(sys.path)
    here, pipeline_folder = tmp_path / "here", tmp_path / "beside"
    for folder in (here, pipeline_folder):
        folder.mkdir()
        (folder / "sluice_probe_order.py").write_text(f"class Model: folder = {str(folder)!r}\n")
    (here / "sluice_probe_here.py").write_text("class Model: ...\n")
    monkeypatch.chdir(here)

    import_object("sluice_probe_here:Model", what="workload")
    add_pipeline_folder(pipeline_folder, ["sluice_probe_order:Model"])

    assert sys.path == [*before, str(pipeline_folder), str(here)]
    assert import_object("sluice_probe_order:Model", what="workload").folder == str(pipeline_folder)
