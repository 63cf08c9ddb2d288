"""Extracts blocks of code from the documentation and checks commands and settings in them."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml

from sluice.bench.documentation.command_pages import parameters_of, walk_commands
from sluice.cli.app import build_app
from sluice.config.pipeline import PipelineSettings

ROOT = Path(__file__).parents[2]
GENERATED = ("docs/rules/", "docs/faults/", "docs/checks/")
"""Generated pages, whose examples are run by tests/sluice/bench/documentation."""

_BLOCK = re.compile(
    r"(?:^[ ]*<!-- not run: (?P<reason>[^>]+?) -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<kind>[a-z{][^\n]*)?\n(?P<text>.*?)^[ ]*```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_OTHER_PROGRAMS = frozenset(
    {"cd", "chmod", "cp", "curl", "dg", "export", "head", "mkdir", "openssl", "pip", "pre-commit"}
    | {"prometheus", "prometheus-alertmanager", "python", "sqlite3", "."}
)
TESTED_ELSEWHERE = frozenset(
    f"docs/{page}.md"
    for page in (
        *("how-to/classify-images", "how-to/classify-texts", "how-to/train-a-language-model"),
        *("how-to/serve-other-inputs", "how-to/use-in-a-notebook", "how-to/start-from-your-data"),
        *("how-to/use-in-a-dagster-project", "reference/python-api"),
    )
)
"""Pages whose programs need files or servers, which tests/test_docs_*.py prepare."""


class Block(NamedTuple):
    """A block of code, with the reason why it cannot be run, or an empty reason."""

    page: str
    line: int
    kind: str
    text: str
    reason: str

    @property
    def file(self) -> str:
        """Name in the first line ("# my_model.py") of a file that the reader saves; or empty."""
        found = re.match(r"# (\w+\.(?:py|ya?ml))", self.text)
        return found[1] if found else ""


def find_pages() -> list[Path]:
    """Return README.md and every page of the documentation that is not generated."""
    paths = sorted(p for p in (ROOT / "docs").rglob("*.md") if not p.parent.name.startswith("_"))
    handwritten = [p for p in paths if not p.relative_to(ROOT).as_posix().startswith(GENERATED)]
    return [ROOT / "README.md", *handwritten]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page except directives of the site generator."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        kind = (found["kind"] or "").strip().partition(" ")[0]
        if not kind.startswith("{"):
            indent = found["indent"]
            lines = [line.removeprefix(indent) for line in found["text"].splitlines()]
            yield Block(
                page=page.relative_to(ROOT).as_posix(),
                line=text.count("\n", 0, found.start()) + 1,
                kind=kind,
                text="\n".join(lines) + "\n",
                reason=found["reason"] or "",
            )


class Commands:
    """The command line, against which blocks of shell commands are checked."""

    def __init__(self) -> None:
        root = typer.main.get_command(build_app())
        self.known: Mapping[str, Any] = dict(walk_commands(root))
        makefile = (ROOT / "Makefile").read_text()
        self.targets = frozenset(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))

    def problems(self, text: str) -> Iterator[str]:
        """Yield what is wrong with the commands of a block."""
        for line in text.replace("\\\n", " ").splitlines():
            for command in _split(shlex.split(line.removeprefix("$ "), comments=True)):
                if problem := self._problem(command):
                    yield f"{line.strip()}: {problem}"

    def _problem(self, words: list[str]) -> str:
        program, *rest = words
        if program == "make":
            return "" if {w for w in rest if "=" not in w} <= self.targets else "no such target"
        if program != "sluice":
            return "" if program in _OTHER_PROGRAMS else "no such program"
        return self._problem_of_sluice(rest)

    def _problem_of_sluice(self, words: list[str]) -> str:
        path, command = "sluice", None
        while words and f"{path} {words[0]}" in self.known:
            path = f"{path} {words.pop(0)}"
            command = self.known[path]
        has_program = path == "sluice trace" and "--" in words
        if command is None or (hasattr(command, "commands") and words and not has_program):
            return "no such command"
        if has_program:
            words = words[: words.index("--")]
        parameters = parameters_of(command)
        options = {name: p for p in parameters for name in (*p.opts, *p.secondary_opts)}
        arguments = [p for p in parameters if p.param_type_name == "argument"]
        values = []
        while words:
            word = words.pop(0)
            name = word.partition("=")[0]
            if not name.startswith("--"):
                values.append(word)
            elif name not in options:
                return f"no option {name}"
            elif not options[name].is_flag and "=" not in word and not (words and words.pop(0)):
                return f"{name} needs a value"
        needed = sum(p.required for p in arguments)
        allowed = len(arguments) if all(p.nargs == 1 for p in arguments) else len(values)
        return "" if needed <= len(values) <= allowed else f"{len(values)} arguments"


def _split(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands of a line, which may be joined by && and redirected."""
    command: list[str] = []
    for word in words:
        if word in ("&&", "|", ";"):
            yield command
            command = []
        elif word.startswith(">"):
            break
        else:
            command.append(word)
    if command:
        yield command


def check_yaml(block: Block) -> None:
    """Parse a block as a pipeline file, or as some keys of one.

    Raises:
        SettingsError: A key or a value is not valid.
    """
    values = yaml.safe_load(block.text)
    is_file = "type" in values
    attributes = values["attributes"] if is_file else values
    required = {"name": "docs", "workload": "tests.support.echo:Echo"}
    attributes.pop("based_on", None)
    PipelineSettings.parse(required | attributes, where=f"{block.page}:{block.line}")
