"""The page about the command line, generated from the commands."""

import inspect
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from sluice.bench.documentation import markdown

_HELP_OPTIONS = frozenset({"help"})
_TYPE_NAMES = {int: "INTEGER", float: "NUMBER", Path: "PATH"}


def command_page(app: typer.Typer) -> dict[str, str]:
    """Return the text of the page about all commands of an app, by its path."""
    root = typer.main.get_command(app)
    paragraphs = [
        "# Command line",
        "Results are printed on stdout, progress and errors on stderr. Exit codes: 0: success; "
        "1: a gate did not pass, or a training or search failed; 2: an error of the user, or "
        "unusable input or state; 3: an internal error; 130: interrupted. `--json` prints results "
        "as JSON. Every command has `--help`.",
    ]
    for name, command in walk_commands(root):
        paragraphs += _section(name, command)
    return {"reference/commands.md": markdown.page(*paragraphs)}


def walk_commands(command: Any, path: Sequence[str] = ("sluice",)) -> Iterator[tuple[str, Any]]:
    """Yield (full name, command) of every visible command, groups before their commands."""
    if len(path) > 1:
        yield " ".join(path), command
    for name in sorted(getattr(command, "commands", {})):
        child = command.commands[name]
        if not child.hidden:
            yield from walk_commands(child, (*path, name))


def parameters_of(command: Any) -> list[Any]:
    """Return the visible parameters of a command; for a group, the options of its hidden command.

    The hidden command runs if the user calls the group without the name of a command, such as
    ``sluice trace -- PROGRAM``.
    """
    children = getattr(command, "commands", None)
    if children is not None:
        hidden_commands = [child for child in children.values() if child.hidden]
        parameters = [
            parameter
            for child in hidden_commands
            for parameter in child.params
            if parameter.param_type_name == "option"
        ]
    else:
        parameters = command.params
    return [
        parameter
        for parameter in parameters
        if parameter.name not in _HELP_OPTIONS and not getattr(parameter, "hidden", False)
    ]


def _section(name: str, command: Any) -> list[str]:
    text = inspect.cleandoc(command.help or "").replace("\f", "").strip()
    paragraphs = [f"## `{name}`", _paragraphs(text)]
    if example := inspect.cleandoc(command.epilog or "").strip():
        paragraphs.append(_paragraphs(example))
    rows = [
        (_usage(parameter), _default(parameter), " ".join((parameter.help or "").split()))
        for parameter in parameters_of(command)
    ]
    if rows:
        paragraphs.append(markdown.table(("argument or option", "default", "meaning"), rows))
    return paragraphs


def _paragraphs(text: str) -> str:
    """Return a help text with one line per paragraph, and examples as blocks of code."""
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        example = re.match(r"Examples?: (.*)", line)
        blocks.append(f"```bash\n{example[1]}\n```" if example else line)
    return "\n\n".join(blocks)


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag or parameter.count:
        return f"`{names}`"
    return f"`{names} {_metavar(parameter)}`"


def _metavar(parameter: Any) -> str:
    """Return the metavar of an option: its type in capitals, or its choices separated by ``|``."""
    if parameter.metavar:
        return str(parameter.metavar)
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) in (list, tuple):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return _TYPE_NAMES.get(annotation, "TEXT")


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    is_empty = value is None or value is False or value in ((), "")
    if is_empty or callable(value) or "UNSET" in repr(value).upper():
        return ""
    return f"`{getattr(value, 'value', value)}`"
