"""No text or message tells users to install the unrelated package `sluice` from PyPI."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import sluice
from sluice.cli import app

ROOT = Path(__file__).resolve().parent.parent
UNRELATED_PACKAGE = "sluice"
"""Name of a package on the public index that manages ZFS snapshots."""

_COMMAND = re.compile(r"\bpip3? (?:install|download|wheel)((?:[ \t]+[^\s`#;,()]+)+)")
_OPTIONS_WITH_VALUE = frozenset({"-r", "-c", "--wheel-dir", "--report", "-d", "-i", "--index-url"})
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?=$|\[|[=<>!~@])")


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read_locked_names() -> set[str]:
    """Return the names of packages whose hashes are locked, so that they cannot be replaced."""
    texts = [path.read_text() for path in (ROOT / "requirements").glob("*.txt")]
    return {normalised(name) for text in texts for name in re.findall(r"(?m)^([\w.-]+)==", text)}


def packages_installed_by(text: str) -> list[str]:
    """Return the packages that commands in a text install from an index; '?' for placeholders.

    A command ends with its line or at a backtick, bracket, comma or semicolon.
    """
    found: list[str] = []
    for command in _COMMAND.finditer(text):
        words = iter(word.strip("'\"") for word in command[1].split())
        for word in words:
            if word in _OPTIONS_WITH_VALUE:
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
def test_search_finds_the_packages_of_install_commands(text: str, found: list[str]) -> None:
    assert packages_installed_by(text) == found


def list_tracked_files() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    this_file = Path(__file__)
    return [p for p in paths if p.is_file() and not p.is_symlink() and p != this_file]


@pytest.mark.slow
def test_install_commands_name_only_locked_packages_or_this_project() -> None:
    known = read_locked_names() | {normalised(read_project()["name"])}
    num_read, wrong = 0, []
    for path in list_tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        num_read += 1
        wrong += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in packages_installed_by(text)
            if name not in known - {UNRELATED_PACKAGE}
        ]
    assert num_read > 300
    assert wrong == []


def test_no_requirement_names_the_unrelated_package() -> None:
    assert read_project()["name"] == "sluice-mlops"
    # Requirements outside of the commands that the test above reads.
    requirement = re.compile(r"""["'`]sluice(\[[a-z, ]+\])["'`]|^sluice\s*[=~>]=""", re.MULTILINE)
    wrong = [
        str(path.relative_to(ROOT))
        for path in list_tracked_files()
        if path.suffix in {".md", ".py", ".toml", ".txt", ".yaml", ".yml", ".sh"}
        and requirement.search(path.read_text())
    ]
    assert wrong == []


def test_lock_files_omit_this_project_and_the_unrelated_package() -> None:
    assert not {UNRELATED_PACKAGE, normalised(read_project()["name"])} & read_locked_names()
    assert len(read_locked_names()) > 100


@pytest.mark.slow
def test_version_needs_no_installed_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    """The name under which Sluice is installed, or whether it is installed, does not matter."""
    assert app.run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"sluice {sluice.__version__}\n"
