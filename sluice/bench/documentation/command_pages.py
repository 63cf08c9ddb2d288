"""The page about the command line, from the commands themselves."""

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
    parts = [
        "# Command line",
        "Results are printed on stdout, progress and errors on stderr. Exit codes: 0 success, 1 a "
        "gate did not pass, or a training or search failed, 2 an error of the user or unusable "
        "input or state, 3 an internal error, 130 interrupted. `--json` prints results as JSON. "
        "Every command has `--help`.",
    ]
    for path, command in walk_commands(root):
        parts += _section(path, command)
    return {"reference/commands.md": markdown.page(*parts)}


def walk_commands(command: Any, path: Sequence[str] = ("sluice",)) -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, groups before their commands."""
    if len(path) > 1:
        yield " ".join(path), command
    for name in sorted(getattr(command, "commands", {})):
        child = command.commands[name]
        if not child.hidden:
            yield from walk_commands(child, (*path, name))


def parameters_of(command: Any) -> list[Any]:
    """Return the visible parameters of a command; of a group, the options of its hidden command.

    A hidden command runs what is given to the group itself, as ``sluice trace -- PROGRAM`` does.
    """
    children = getattr(command, "commands", None)
    if children is not None:
        hidden = [child for child in children.values() if child.hidden]
        options = [p for child in hidden for p in child.params if p.param_type_name == "option"]
    else:
        options = command.params
    return [
        parameter
        for parameter in options
        if parameter.name not in _HELP_OPTIONS and not getattr(parameter, "hidden", False)
    ]


def _section(path: str, command: Any) -> list[str]:
    text = inspect.cleandoc(command.help or "").replace("\f", "").strip()
    parts = [f"## `{path}`", _paragraphs(text)]
    if example := inspect.cleandoc(command.epilog or "").strip():
        parts.append(_paragraphs(example))
    rows = [
        (_name(parameter), _default(parameter), " ".join((parameter.help or "").split()))
        for parameter in parameters_of(command)
    ]
    if rows:
        parts.append(markdown.table(("argument or option", "default", "meaning"), rows))
    return parts


def _paragraphs(text: str) -> str:
    """Return a help text with its examples as blocks of code."""
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = " ".join(paragraph.split())
        example = re.match(r"Examples?: (.*)", lines)
        blocks.append(f"```bash\n{example[1]}\n```" if example else lines)
    return "\n\n".join(blocks)


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag or parameter.count:
        return f"`{names}`"
    return f"`{names} {_values(parameter)}`"


def _values(parameter: Any) -> str:
    """Return the values of an option in capitals, or the words that it takes."""
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
    is_off = value is None or value is False or value in ((), "")
    if is_off or callable(value) or "UNSET" in repr(value).upper():
        return ""
    return f"`{getattr(value, 'value', value)}`"
