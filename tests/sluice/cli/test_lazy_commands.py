"""Listing commands imports no command, and a command imports heavy packages when it runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from sluice.cli.app import COMMANDS, build_app, build_outline, run_command

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {
    *("torch", "numpy", "pandas", "scipy", "pyarrow", "sklearn", "sqlalchemy", "pydantic"),
    *("dagster", "ray", "great_expectations", "wandb", "fastapi", "matplotlib", "statsmodels"),
}
SCRIPT = """
import contextlib, io, json, sys
from sluice.cli.app import run_command
with contextlib.redirect_stdout(io.StringIO()) as out:
    code = run_command(sys.argv[1:])
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules}), out.getvalue()]))
"""


def run_in_subprocess(*arguments: str) -> tuple[int, set[str], str]:
    """Return the exit code, the imported packages and the output of one command."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )
    code, modules, out = json.loads(done.stdout)
    return code, set(modules), out


def test_list_of_commands_imports_no_heavy_package():
    code, modules, out = run_in_subprocess("--help")

    assert code == 0
    assert modules & HEAVY == set()
    assert [name for name in COMMANDS if not re.search(rf"^\W*{name} ", out, re.MULTILINE)] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gate", "trace", "poc", "run", "doctor", "bench"])
def test_help_of_a_command_imports_only_pydantic(command):
    code, modules, _ = run_in_subprocess(command, "--help")

    assert code == 0
    assert modules & HEAVY <= {"pydantic"}


def test_importing_sluice_imports_no_other_package():
    script = (
        "import sys; before = set(sys.modules); import sluice;"
        "print(*sorted({n.partition('.')[0] for n in set(sys.modules) - before}"
        " - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.split() == ["sluice"]


@pytest.mark.slow
def test_list_and_command_help_have_the_same_summaries():
    full = get_command(build_app()).commands
    outline = get_command(build_outline()).commands

    assert list(outline) == list(COMMANDS)
    assert set(full) == set(outline)
    for name, command in full.items():
        first = re.split(r"\n\n", command.help or command.callback.__doc__)[0]
        assert " ".join(first.split()) == outline[name].help, name


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_registered_by_its_own_modules(name):
    commands = get_command(build_app(name)).commands

    assert name in commands
    assert commands[name].callback is not get_command(build_outline()).commands[name].callback


def test_misspelled_command_suggests_the_nearest_one(capsys):
    assert run_command(["registri"]) == 2
    assert "Did you mean 'registry'?" in " ".join(capsys.readouterr().err.split())


def test_command_after_two_dashes_is_not_run_from_the_outline(capsys):
    """A command that is not the first argument is registered like any other."""
    assert run_command(["--", "gate", "--help"]) == 0
    assert "--min-gain" in capsys.readouterr().out
