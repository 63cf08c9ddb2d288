"""The list of commands imports no command, and a command imports its engines when it runs."""

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


def started(*arguments: str) -> tuple[int, set[str], str]:
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


def test_the_list_of_commands_imports_no_package_of_theirs():
    code, modules, out = started("--help")

    assert code == 0
    assert modules & HEAVY == set()
    assert [name for name in COMMANDS if not re.search(rf"^\W*{name} ", out, re.MULTILINE)] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["gate", "trace", "poc", "run", "doctor", "bench"])
def test_the_help_of_a_command_imports_only_pydantic(command):
    code, modules, _ = started(command, "--help")

    assert code == 0
    assert modules & HEAVY <= {"pydantic"}


def test_importing_sluice_imports_nothing_else():
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
def test_the_list_says_of_every_command_what_its_own_help_says():
    whole = get_command(build_app()).commands
    outline = get_command(build_outline()).commands

    assert list(outline) == list(COMMANDS)
    assert set(whole) == set(outline)
    for name, command in whole.items():
        first = re.split(r"\n\n", command.help or command.callback.__doc__)[0]
        assert " ".join(first.split()) == outline[name].help, name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_found_among_the_modules_of_its_own_entry(name):
    commands = get_command(build_app(name)).commands

    assert name in commands
    assert commands[name].callback is not get_command(build_outline()).commands[name].callback


def test_a_misspelled_command_gets_the_nearest_one(capsys):
    assert run_command(["registri"]) == 2
    assert "Did you mean 'registry'?" in " ".join(capsys.readouterr().err.split())


def test_no_command_of_the_outline_runs(capsys):
    """A command that is not the first argument is registered like any other."""
    assert run_command(["--", "gate", "--help"]) == 0
    assert "--min-gain" in capsys.readouterr().out
