"""Commands in messages are rewritten so that they can be run as printed."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.base.command_lines import make_commands_runnable, program_name
from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.registry.ledger import Ledger


@pytest.fixture
def executable(tmp_path):
    """Path of an executable ``sluice`` in a project's virtual environment."""
    file = tmp_path / ".venv" / "bin" / "sluice"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_program_outside_path_is_printed_with_its_path(executable, tmp_path):
    other_folder = tmp_path / "other"
    other_folder.mkdir()

    assert program_name(str(executable), cwd=tmp_path, path="/usr/bin") == ".venv/bin/sluice"
    assert program_name(".venv/bin/sluice", cwd=tmp_path, path="") == ".venv/bin/sluice"
    assert program_name(str(executable), cwd=other_folder, path="") == str(executable)


def test_program_on_path_is_printed_with_its_name(executable, tmp_path):
    path = os.pathsep.join(["/usr/bin", str(executable.parent)])

    assert program_name(str(executable), cwd=tmp_path, path=path) == "sluice"


def test_other_program_with_the_same_name_on_path_is_ignored(executable, tmp_path):
    other_program = tmp_path / "zfs" / "sluice"
    other_program.parent.mkdir()
    other_program.write_text("#!/bin/sh\n")
    other_program.chmod(0o755)

    result = program_name(str(executable), cwd=tmp_path, path=str(other_program.parent))

    assert result == ".venv/bin/sluice"


def test_module_is_printed_as_python_m_command(tmp_path):
    result = program_name("/x/sluice/__main__.py", cwd=tmp_path, path="")

    assert result == f"{os.path.abspath(sys.executable)} -m sluice"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Run: sluice run demo", "Run: bin/sluice run demo"),
        ("first run: sluice tokens remove a", "first run: bin/sluice tokens remove a"),
        ("sluice explain dead-units", "bin/sluice explain dead-units"),
        ("('sluice dev') shows", "('bin/sluice dev') shows"),
        ("sluice trace: tracing stopped", "sluice trace: tracing stopped"),
        ("see sluice/trace/settings.py", "see sluice/trace/settings.py"),
        ("import sluice run", "import bin/sluice run"),
        ("sluice is not", "sluice is not"),
    ],
)
def test_only_commands_are_rewritten(text, expected):
    assert make_commands_runnable(text, [], program="bin/sluice") == expected


def test_printed_command_uses_the_pipeline_file_of_the_arguments(tmp_path):
    file = tmp_path / "d.yaml"
    file.write_text("attributes: {name: diabetes}\n")
    text = "Run: sluice run diabetes. See sluice registry list diabetes, sluice serve diabetes2."

    result = make_commands_runnable(text, ["serve", str(file)], program="sluice")

    assert result == text.replace("run diabetes", f"run {file}")


def test_arguments_that_are_not_pipeline_files_are_ignored(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1")
    (tmp_path / "b.yaml").write_text("{")
    arguments = [str(tmp_path / name) for name in ("a.yaml", "b.yaml", "none.yaml")]

    assert make_commands_runnable("sluice run x", arguments, program="sluice") == "sluice run x"


@pytest.mark.slow
def test_serve_without_production_version_prints_the_run_command_for_the_file(
    tmp_path, monkeypatch, capfd
):
    echo = Path(__file__).parents[2] / "support" / "echo.yaml"
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    home = Home.from_environment(os.environ, cwd=tmp_path)
    home.root.mkdir()
    with Ledger.open(home.registry_url, clock=lambda: datetime.now(UTC)):
        pass

    assert run_command(["serve", str(echo)]) == 2

    assert f"sluice run {echo}" in capfd.readouterr().err


def test_help_and_version_are_printed(capfd):
    assert run_command([]) == 0
    assert "Commands" in capfd.readouterr().out
    assert run_command(["--version"]) == 0
    assert capfd.readouterr().out == "sluice 0.1.0\n"


def test_list_prints_pipelines_as_text_and_json(capfd):
    assert run_command(["list"]) == 0
    output = capfd.readouterr().out
    assert "sp500_volatility" in output
    assert "digits" in output
    assert run_command(["list", "--json"]) == 0
    assert '"name": "digits"' in capfd.readouterr().out
