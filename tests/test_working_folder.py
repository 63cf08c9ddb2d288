"""A folder in which a command is run executes nothing by the names of its files alone."""

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
OWN = "sluice_probe_planted"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A pipeline of the user's in a folder whose other modules leave a mark when they run."""
    file = project(tmp_path / "here", OWN)
    for name in SHADOWS:
        mark = f"open({str(tmp_path / 'executed')!r}, 'a').write('{name} ')\n"
        (file.parent / f"{name}.py").write_text(mark + "raise SystemExit('not ours')\n")
    return file


def executed(planted: Path) -> str:
    mark = planted.parents[1] / "executed"
    return mark.read_text() if mark.exists() else ""


def python(*arguments: str, cwd: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
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
def test_no_command_executes_what_lies_in_the_working_folder(
    planted: Path, command: tuple[str, ...]
) -> None:
    done = python("-m", "sluice", *command, cwd=planted.parent)

    assert executed(planted) == ""
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_users_own_module_is_found_there_also_by_the_process_of_the_gate(planted: Path) -> None:
    done = python("-m", "sluice", "poc", planted.name, "--minimum", cwd=planted.parent)

    assert executed(planted) == ""
    assert done.returncode == 0, done.stderr


LOCATION = """
from dagster._core.code_pointer import ModuleCodePointer
import os, sys
defs = ModuleCodePointer("sluice.pipelines.definitions", "defs", os.environ["DAGSTER_HOME"])
repository = defs.load_target()().get_repository_def()
print(*{key.path[0] for key in repository.asset_graph.get_all_asset_keys()})
"""


@pytest.mark.slow
def test_the_code_server_finds_its_own_module_there_and_nothing_else(planted: Path) -> None:
    """With the environment of ``sluice dev``, and as Dagster loads the definitions."""
    home = planted.parents[1] / "dagster"
    home.mkdir()
    done = python(
        *("-c", LOCATION),
        cwd=planted.parent,
        PYTHONSAFEPATH="1",
        PYTHONPATH=os.pathsep.join([str(home), str(ROOT)]),
        DAGSTER_HOME=str(home),
        SLUICE_PIPELINES=str(planted),
    )

    assert executed(planted) == ""
    assert done.returncode == 0, done.stderr
    assert {OWN} == set(done.stdout.split())


def test_every_process_that_sluice_starts_leaves_the_working_folder_out() -> None:
    """Python puts it first with -c and -m; with -P it does not, nor does multiprocessing."""
    starts = re.compile(r'sys\.executable, "-[cm]"')
    files = [
        p
        for name in ("sluice", "assets", "checks", "pipelines")
        for p in (ROOT / name).rglob("*.py")
    ]
    safe = [p for p in files if re.search(r'sys\.executable, "-P"', p.read_text())]

    assert len(safe) > 5
    assert [str(p) for p in files if starts.search(p.read_text())] == []


def test_a_users_module_that_python_finds_elsewhere_first_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tabnanny.py").write_text("class Model: ...\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SettingsError, match=r"finds another module of that name first: .*tabnanny"):
        add_pipeline_folder(tmp_path, ["tabnanny:Model"])
    with pytest.raises(SettingsError, match=r"Python imported .* and not .*tabnanny\.py"):
        import_object("tabnanny:Model", what="workload")


def test_folders_of_the_user_come_last_and_that_of_the_file_before_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(imports._search_folders)  # of pipelines that this process has read before
    monkeypatch.setattr(imports, "_search_folders", [])
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in others])
    before = list(sys.path)
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
        (folder / "sluice_probe_order.py").write_text(f"class Model: place = {str(folder)!r}\n")
    (here / "sluice_probe_here.py").write_text("class Model: ...\n")
    monkeypatch.chdir(here)

    import_object("sluice_probe_here:Model", what="workload")
    add_pipeline_folder(beside, ["sluice_probe_order:Model"])

    assert sys.path == [*before, str(beside), str(here)]
    assert import_object("sluice_probe_order:Model", what="workload").place == str(beside)
