"""REPRO-5: state of git, interpreter and libraries, in real repositories."""

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.environment import installed_versions, read_environment, read_git


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.py").write_text("x = 1\n")
    git(folder, "add", "a.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_clean_repository(repository: Path) -> None:
    state = read_git(repository, store=None)

    assert state.commit == git(repository, "rev-parse", "HEAD")
    assert (state.dirty, state.diff) == (False, None)


def test_change_is_dirty_and_its_diff_can_be_read_back(
    repository: Path, store: ArtifactStore
) -> None:
    (repository / "a.py").write_text("x = 2\n")

    state = read_git(repository, store=store)

    assert state.dirty
    assert state.diff is not None
    assert b"-x = 1\n+x = 2\n" in store.get(state.diff)
    assert state == read_git(repository, store=None)
    (repository / "a.py").write_text("x = 3\n")
    assert read_git(repository, store=None).diff != state.diff


def test_untracked_file_is_dirty(repository: Path) -> None:
    (repository / "new.py").write_text("")

    assert read_git(repository, store=None).dirty


def test_git_variables_in_the_environment_are_ignored(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git hook sets GIT_DIR."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert read_git(repository, store=None).dirty is False


def test_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("")

    state = read_git(tmp_path, store=None)

    assert (state.commit, state.dirty) == ("unknown", True)


def test_no_repository_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_git(tmp_path, store=None).model_dump() == {
        "commit": "unknown",
        "dirty": None,
        "diff": None,
    }
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git(tmp_path, store=None).commit == "unknown"


def test_versions_are_those_installed() -> None:
    assert installed_versions(("numpy", "no-such-thing")) == {"numpy": metadata.version("numpy")}


@pytest.mark.slow
def test_environment_of_this_process() -> None:
    found = read_environment()

    assert found.python.startswith("3.")
    assert found.cpu_count >= 1
    assert found.libraries["torch"] == metadata.version("torch")
    assert (found.device == "cpu") == (found.device_count == 0)
