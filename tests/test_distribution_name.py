"""No text and no message has anybody install a package that is not what it is taken for."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import sluice
from sluice.cli import app

ROOT = Path(__file__).resolve().parent.parent
TAKEN = "sluice"
"""A package of this name is on the public index, and it manages snapshots of ZFS."""

_COMMAND = re.compile(r"\bpip3? (?:install|download|wheel)((?:[ \t]+[^\s`#;,()]+)+)")
_WITH_VALUE = frozenset({"-r", "-c", "--wheel-dir", "--report", "-d", "-i", "--index-url"})
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?=$|\[|[=<>!~@])")


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked() -> set[str]:
    """Return the packages that hashes cover: nobody can put another one in their place."""
    texts = [path.read_text() for path in (ROOT / "requirements").glob("*.txt")]
    return {normalised(name) for text in texts for name in re.findall(r"(?m)^([\w.-]+)==", text)}


def installed_by(text: str) -> list[str]:
    """Return what the commands in a text take from an index; '?' for what a program fills in.

    A command ends with its line or at a backtick, bracket, comma or semicolon.
    """
    found: list[str] = []
    for command in _COMMAND.finditer(text):
        words = iter(word.strip("'\"") for word in command[1].split())
        for word in words:
            if word in _WITH_VALUE:
                next(words, None)
            elif word.startswith("{"):
                found.append("?")
            elif name := _REQUIREMENT.match(word):
                found.append(normalised(name[0]))
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pip install 'sluice[postgres]'", ["sluice"]),
        ('run `pip install "sluice"` first', ["sluice"]),
        ("pip install --upgrade Sluice==0.1", ["sluice"]),
        ("uv pip install sluice", ["sluice"]),
        ("pip install torch sluice", ["torch", "sluice"]),
        ("python -m pip install -r some.txt torch", ["torch"]),
        ("pip download --no-deps -d folder sluice", ["sluice"]),
        ('f"Install it: pip install {package} (or so)"', ["?"]),
        ("pip install '.[postgres]'", []),
        ("pip install --no-deps -e /some/folder", []),
        ("pip install dist/sluice_mlops-*.whl", []),
        ("pip wheel --no-deps --wheel-dir dist .", []),
        ("pip install --require-hashes --no-deps -r <file>.", []),
    ],
)
def test_the_search_sees_what_a_command_installs(text: str, found: list[str]) -> None:
    assert installed_by(text) == found


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    here = Path(__file__)
    return [p for p in paths if p.is_file() and not p.is_symlink() and p != here]


@pytest.mark.slow
def test_every_command_installs_what_is_locked_or_lies_here() -> None:
    known = locked() | {normalised(project()["name"])}
    seen, wrong = 0, []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        seen += 1
        wrong += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in installed_by(text)
            if name not in known - {TAKEN}
        ]
    assert seen > 300
    assert wrong == []


def test_no_text_says_the_distribution_is_the_package_of_somebody_else() -> None:
    assert project()["name"] == "sluice-mlops"
    # A requirement, with or without a version, beside the commands that the test above reads.
    requirement = re.compile(r"""["'`]sluice(\[[a-z, ]+\])["'`]|^sluice\s*[=~>]=""", re.MULTILINE)
    wrong = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix in {".md", ".py", ".toml", ".txt", ".yaml", ".yml", ".sh"}
        and requirement.search(path.read_text())
    ]
    assert wrong == []


def test_what_is_not_published_is_not_locked() -> None:
    assert not {TAKEN, normalised(project()["name"])} & locked()
    assert len(locked()) > 100


@pytest.mark.slow
def test_the_version_needs_no_installed_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    """Under which name Sluice is installed, or whether it is, makes no difference."""
    assert app.run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"sluice {sluice.__version__}\n"
