"""Rewrites the commands in messages so that the user can run them as printed.

Messages contain commands such as ``sluice run NAME``. As written, a command fails if the program is
not on the PATH, or if the user selected the pipeline NAME by its file. Before a message is printed,
this module therefore replaces 'sluice' by the path of the program, and NAME by the path of the
file.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from sluice.base.yaml_text import load_yaml

_PIPELINE_COMMANDS = (
    "run|poc|tune|serve|dev|rollout rehearse|suites list|suites show|suites add|suites run"
    "|doctor batch-size|doctor expectations|doctor learning-rate|doctor randomness|trace probe"
)
"""Commands whose argument is the name or file of a pipeline, as alternatives of a regular
expression."""

_COMMAND_NAMES = (
    "bench|dev|doctor|drift|explain|gate|init|judge|list|pack|poc|registry|rollout|run|serve"
    "|suites|tokens|trace|tune"
)
"""All commands, as alternatives of a regular expression."""

_COMMAND = re.compile(rf"(?<![\w./-])sluice(?= (?:{_COMMAND_NAMES})\b(?! is| has|:))")
"""Matches 'sluice' at the start of a command, but not in a sentence such as 'sluice run is ...'."""


def make_commands_runnable(text: str, arguments: Sequence[str], *, program: str) -> str:
    """Return a message whose commands can be run as printed.

    Args:
        text: The message.
        arguments: Arguments of the running command. If they contain the file of a pipeline, the
            file replaces the name of this pipeline in the message.
        program: Command that starts this program; see ``program_name``.

    >>> make_commands_runnable("Run: sluice run demo", [], program=".venv/bin/sluice")
    'Run: .venv/bin/sluice run demo'
    """
    for name, file in _pipeline_files(arguments):
        pattern = rf"(\bsluice (?:{_PIPELINE_COMMANDS})) {re.escape(name)}(?![\w-]|\.\w)"
        text = re.sub(pattern, rf"\1 {file.replace(chr(92), chr(92) * 2)}", text)
    return _COMMAND.sub(lambda _: program, text)


def program_name(started_as: str, *, cwd: Path, path: str | None) -> str:
    """Return the command that starts this program again.

    Args:
        started_as: ``sys.argv[0]``.
        cwd: The working folder.
        path: The environment variable PATH.

    Returns:
        'PYTHON -m sluice', with the path of the interpreter, if the program was started with
        'python -m'. The path of the program, if it was started from a file 'sluice' other than the
        file on the PATH. 'sluice' in all other cases. A path inside the working folder is relative.
    """
    program_path = Path(started_as)
    if program_path.name == "__main__.py":
        return f"{_relative_path(Path(sys.executable), cwd)} -m sluice"
    if program_path.name != "sluice":
        return "sluice"
    file_on_path = shutil.which("sluice", path=path)
    started_file = os.path.realpath(cwd / program_path)
    if file_on_path is not None and os.path.realpath(file_on_path) == started_file:
        return "sluice"
    return _relative_path(program_path, cwd)


def _relative_path(file: Path, cwd: Path) -> str:
    """Return the path of a file: relative if it is in the working folder, otherwise absolute."""
    file = Path(os.path.abspath(cwd / file))
    return str(file.relative_to(cwd)) if file.is_relative_to(cwd) else str(file)


def _pipeline_files(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name and the file of each pipeline whose file is among the arguments."""
    pipelines = []
    for argument in arguments:
        if not argument.endswith((".yaml", ".yml")):
            continue
        try:
            name = load_yaml(Path(argument).read_text())["attributes"]["name"]
        except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
            continue
        pipelines.append((str(name), argument))
    return pipelines
