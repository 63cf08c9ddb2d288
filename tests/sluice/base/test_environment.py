"""State of git, interpreter, libraries and devices that a run records (REPRO-5)."""

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.environment import installed_versions, read_environment, read_git


def run_git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    process = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    run_git(folder, "init", "-q")
    (folder / "a.py").write_text("x = 1\n")
    run_git(folder, "add", "a.py")
    run_git(folder, "commit", "-q", "-m", "first")
    return folder


def test_clean_repository_has_its_commit_and_no_diff(repository: Path) -> None:
    state = read_git(repository, store=None)

    assert state.commit == run_git(repository, "rev-parse", "HEAD")
    assert (state.dirty, state.diff) == (False, None)


def test_changed_file_is_dirty_and_its_diff_is_stored(
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
    """Git sets GIT_DIR in the environment of hooks."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert read_git(repository, store=None).dirty is False


def test_repository_without_commit_is_unknown_and_dirty(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("")

    state = read_git(tmp_path, store=None)

    assert (state.commit, state.dirty) == ("unknown", True)


def test_folder_without_repository_or_git_has_an_unknown_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_git(tmp_path, store=None).model_dump() == {
        "commit": "unknown",
        "dirty": None,
        "diff": None,
    }
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git(tmp_path, store=None).commit == "unknown"


def test_versions_of_installed_packages_are_returned() -> None:
    assert installed_versions(("numpy", "no-such-thing")) == {"numpy": metadata.version("numpy")}


@pytest.mark.slow
def test_environment_has_python_cpus_libraries_and_device() -> None:
    environment = read_environment()

    assert environment.python.startswith("3.")
    assert environment.cpu_count >= 1
    assert environment.libraries["torch"] == metadata.version("torch")
    assert (environment.device == "cpu") == (environment.device_count == 0)
