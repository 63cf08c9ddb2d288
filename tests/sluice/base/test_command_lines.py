"""Commands in messages can be run as printed."""

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
def installed(tmp_path):
    """An executable as in a project's virtual environment."""
    file = tmp_path / ".venv" / "bin" / "sluice"
    file.parent.mkdir(parents=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_a_program_off_the_path_is_named_by_its_path(installed, tmp_path):
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()

    assert program_name(str(installed), cwd=tmp_path, path="/usr/bin") == ".venv/bin/sluice"
    assert program_name(".venv/bin/sluice", cwd=tmp_path, path="") == ".venv/bin/sluice"
    assert program_name(str(installed), cwd=elsewhere, path="") == str(installed)


def test_a_program_on_the_path_is_named_by_its_name(installed, tmp_path):
    path = os.pathsep.join(["/usr/bin", str(installed.parent)])

    assert program_name(str(installed), cwd=tmp_path, path=path) == "sluice"


def test_another_program_of_that_name_on_the_path_is_ignored(installed, tmp_path):
    other = tmp_path / "zfs" / "sluice"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)

    said = program_name(str(installed), cwd=tmp_path, path=str(other.parent))

    assert said == ".venv/bin/sluice"


def test_a_module_is_started_again_by_its_interpreter(tmp_path):
    said = program_name("/x/sluice/__main__.py", cwd=tmp_path, path="")

    assert said == f"{os.path.abspath(sys.executable)} -m sluice"


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_only_commands_are_rewritten(text, said):
    assert make_commands_runnable(text, [], program="bin/sluice") == said


def test_a_pipeline_that_was_given_as_a_file_is_named_by_it(tmp_path):
    file = tmp_path / "d.yaml"
    file.write_text("attributes: {name: diabetes}\n")
    text = "Run: sluice run diabetes. See sluice registry list diabetes, sluice serve diabetes2."

    said = make_commands_runnable(text, ["serve", str(file)], program="sluice")

    assert said == text.replace("run diabetes", f"run {file}")


def test_arguments_that_are_not_pipeline_files_change_nothing(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1")
    (tmp_path / "b.yaml").write_text("{")
    given = [str(tmp_path / name) for name in ("a.yaml", "b.yaml", "none.yaml")]

    assert make_commands_runnable("sluice run x", given, program="sluice") == "sluice run x"


@pytest.mark.slow
def test_serving_a_file_without_production_says_how_to_run_that_file(tmp_path, monkeypatch, capfd):
    echo = Path(__file__).parents[2] / "support" / "echo.yaml"
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    home = Home.from_environment(os.environ, cwd=tmp_path)
    home.root.mkdir()
    with Ledger.open(home.registry_url, clock=lambda: datetime.now(UTC)):
        pass

    assert run_command(["serve", str(echo)]) == 2

    assert f"sluice run {echo}" in capfd.readouterr().err


def test_without_arguments_it_prints_help_and_version(capfd):
    assert run_command([]) == 0
    assert "Commands" in capfd.readouterr().out
    assert run_command(["--version"]) == 0
    assert capfd.readouterr().out == "sluice 0.1.0\n"


def test_pipelines_are_listed(capfd):
    assert run_command(["list"]) == 0
    said = capfd.readouterr().out
    assert "sp500_volatility" in said
    assert "digits" in said
    assert run_command(["list", "--json"]) == 0
    assert '"name": "digits"' in capfd.readouterr().out
