"""Rewrites the commands in messages so that the user can run them as printed.

Messages contain commands such as ``sluice run NAME``. The program may not be on the PATH, and a
pipeline given as a file is not known by its name; both are replaced when a message is printed.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from sluice.base.yaml_text import load_yaml

_OF_A_PIPELINE = (
    "run|poc|tune|serve|dev|rollout rehearse|suites list|suites show|suites add|suites run"
)
"""Commands that take the name or file of a pipeline; the others take the name of a model."""

_GROUPS = "bench|dev|doctor|drift|gate|judge|list|poc|registry|rollout|run|serve|suites|trace|tune"
_COMMAND = re.compile(rf"(?<![\w./-])sluice(?= (?:{_GROUPS})\b(?! is| has|:))")


def make_commands_runnable(text: str, arguments: Sequence[str], *, program: str) -> str:
    """Return a message whose commands can be run as printed.

    Args:
        text: The message.
        arguments: Arguments of the running command. Pipeline files among them replace the names
            of these pipelines in the message.
        program: Command that starts this program; see ``program_name``.

    >>> make_commands_runnable("Run: sluice run demo", [], program=".venv/bin/sluice")
    'Run: .venv/bin/sluice run demo'
    """
    for name, file in _named_files(arguments):
        pattern = rf"(\bsluice (?:{_OF_A_PIPELINE})) {re.escape(name)}(?![\w-]|\.\w)"
        text = re.sub(pattern, rf"\1 {file.replace(chr(92), chr(92) * 2)}", text)
    return _COMMAND.sub(lambda _: program, text)


def program_name(started_as: str, *, cwd: Path, path: str | None) -> str:
    """Return the command that starts this program again.

    Args:
        started_as: ``sys.argv[0]``.
        cwd: The working folder.
        path: The environment variable PATH.

    Returns:
        'sluice' if it resolves to this program on the PATH, or if the program was started in
        another way. Otherwise the path of the program, relative to the working folder if below it.
    """
    started = Path(started_as)
    if started.name == "__main__.py":
        return f"{_from(Path(sys.executable), cwd)} -m sluice"
    if started.name != "sluice":
        return "sluice"
    found = shutil.which("sluice", path=path)
    if found is not None and os.path.realpath(found) == os.path.realpath(cwd / started):
        return "sluice"
    return _from(started, cwd)


def _from(file: Path, cwd: Path) -> str:
    file = Path(os.path.abspath(cwd / file))
    return str(file.relative_to(cwd)) if file.is_relative_to(cwd) else str(file)


def _named_files(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return name and file of each pipeline whose file is among the arguments."""
    found = []
    for argument in arguments:
        if not argument.endswith((".yaml", ".yml")):
            continue
        try:
            name = load_yaml(Path(argument).read_text())["attributes"]["name"]
        except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
            continue
        found.append((str(name), argument))
    return found
