"""Every block of code in README.md and docs/ is valid, or names a reason why it is not run."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import (
    ROOT,
    TESTED_ELSEWHERE,
    Block,
    Commands,
    blocks_of,
    check_yaml,
    find_pages,
)

PAGES = find_pages()
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
NOT_RUN = {
    "copies the state of a real installation": 2,
    "creates secret keys": 1,
    "changes the shell of the reader": 1,
    "needs a running server": 5,
    "needs an MLflow server and a registered model of yours": 1,
    "needs a model that passes the gate": 1,
    "needs a package that is not locked": 2,
    "needs the digest of a search of yours": 1,
    "needs the rollout of the reader": 1,
    "needs the server above": 2,
    "part of examples/resumable_tune.py, which a test runs": 2,
    "runs until it is stopped": 3,
    "starts servers and the programs of other projects": 1,
    "the config of a run, not of a pipeline": 1,
    "the hours of training": 1,
    "the keys of actors, not of a pipeline": 1,
    "the number depends on the versions of the reader": 1,
}
"""Number of blocks that cannot run in a test, by reason. New exceptions must be added here."""
SHELL = ("bash", "sh", "console")
KINDS = {"python", "yaml", "text", *SHELL}


def of_kind(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind in kinds and not block.reason]


def name(block: Block) -> str:
    return f"{block.page}:{block.line}"


def test_every_block_has_a_known_language_and_every_exception_is_counted() -> None:
    assert [name(block) for block in BLOCKS if block.kind not in KINDS] == []
    assert Counter(block.reason for block in BLOCKS if block.reason) == NOT_RUN
    assert len(of_kind("python")) >= 20
    assert len(of_kind("yaml")) > 15
    assert len(of_kind(*SHELL)) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    sorted({ROOT / b.page for b in of_kind("python") if b.page not in TESTED_ELSEWHERE}),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_programs_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that begins with the name of a file is saved as that file, and imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    names: dict[str, object] = {"__name__": "documentation"}
    num_blocks = 0
    try:
        for block in blocks_of(page):
            if block.kind != "python" or block.reason:
                continue
            if block.file:
                (tmp_path / block.file).write_text(block.text)
            code = compile(block.text, name(block), "exec")
            num_blocks += 1
            # The client of the tutorial needs a running server; test_tutorial.py runs it.
            if block.file != "traffic.py":
                exec(code, {"__name__": block.file.partition(".")[0]} if block.file else names)
    finally:
        for module in set(sys.modules) - before:
            if module.startswith("my_"):
                del sys.modules[module]

    assert num_blocks > 0


@pytest.mark.parametrize("block", of_kind("yaml"), ids=name)
def test_yaml_block_is_valid_in_a_pipeline_file(block: Block) -> None:
    check_yaml(block)


def test_every_command_exists_with_its_options() -> None:
    commands = Commands()

    problems = {
        name(block): found
        for block in of_kind("bash", "sh")
        if (found := list(commands.problems(block.text)))
    }

    assert problems == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("sluice registry rollback demand --reason x", ""),
        ("sluice registry rollback demand --because x", "no option --because"),
        ("sluice registry rollback", "0 arguments"),
        ("sluice registry undo demand", "no such command"),
        ("sluice promote demand", "no such command"),
        ("sluice gate --baseline", "--baseline needs a value"),
        ("make everything", "no such target"),
        ("rm -rf demand", "no such program"),
        ("mkdir x && sluice trace --out x -- python train.py --epochs 3", ""),
    ],
)
def test_only_invalid_commands_are_reported(line: str, problem: str) -> None:
    found = list(Commands().problems(line))

    assert found == ([f"{line}: {problem}"] if problem else [])


def test_readme_is_short_and_links_existing_pages() -> None:
    text = (ROOT / "README.md").read_text()
    lines = text.splitlines()
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
    own_model = [b for b in blocks_of(ROOT / "README.md") if b.file.startswith("my_model")]

    assert len(lines) <= 150
    assert sum(len(block.text.splitlines()) for block in own_model) < 40
    assert {"make run", "make test"} <= {line.split("  ")[0] for line in lines}
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
