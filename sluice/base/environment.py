"""Records the environment of a run: git state, interpreter, libraries and device."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from pydantic import Field

import sluice
from sluice.base.artifacts import ArtifactStore
from sluice.base.cpu_count import count_cores
from sluice.base.digests import digest_bytes
from sluice.base.settings import Record

UNKNOWN = "unknown"
"""Commit that is recorded if git reports no commit: outside a repository, before the first commit,
or without git."""

LIBRARIES = (
    "torch",
    "numpy",
    "pandas",
    "scipy",
    "arch",
    "safetensors",
    "pydantic",
    "dagster",
    "great-expectations",
    "ray",
    "sqlalchemy",
)
"""Distributions whose versions are recorded, because they can change a result or a decision. The
lock files determine the versions of all other distributions."""

GIT_TIMEOUT_S = 20.0
"""Time limit of one git command [s]."""

MAX_DIFF_BYTES = 4 * 1024 * 1024
"""Maximum length of a stored diff [bytes]. A longer diff, such as one of a binary file, is cut."""


class GitState(Record):
    """Git state of the folder in which the run started."""

    commit: str = Field(description="Full hash of the commit; 'unknown' if git reports no commit.")
    dirty: bool | None = Field(
        description="Whether there are uncommitted changes; None if unknown."
    )
    diff: str | None = Field(
        description="Digest of the diff against the commit; None without changes or if unknown."
    )


class Environment(Record):
    """Software and hardware of a training process."""

    python: str
    platform: str = Field(description="Operating system, release and processor architecture.")
    libraries: dict[str, str] = Field(description="Version by distribution name.")
    device: str = Field(description="'cpu', or the name of the accelerator.")
    device_count: int = Field(description="Number of visible accelerators; 0 on the CPU.")
    cpu_count: int = Field(description="Number of CPU cores that this process may use.")


def read_git(cwd: Path, *, store: ArtifactStore | None) -> GitState:
    """Return commit, dirty state and diff digest of the repository around ``cwd``.

    The diff covers tracked files. Untracked files also make the state dirty; their names are listed
    at the end of the diff. If a store is given, the diff is stored there. A diff longer
    than ``MAX_DIFF_BYTES`` is cut and ends with the length and digest of the whole diff.
    """
    commit_line = _git(cwd, "rev-parse", "--verify", "--quiet", "HEAD")
    status_lines = _git(cwd, "status", "--porcelain")
    if status_lines is None:
        return GitState(commit=UNKNOWN, dirty=None, diff=None)
    commit = UNKNOWN if commit_line is None else commit_line.decode().strip()
    if not status_lines.strip():
        return GitState(commit=commit, dirty=False, diff=None)
    tracked_diff = None if commit_line is None else _git(cwd, "diff", "--binary", "HEAD")
    diff = _limit_length((tracked_diff or b"") + b"\n# git status --porcelain\n" + status_lines)
    digest = store.put(diff) if store is not None else digest_bytes(diff)
    return GitState(commit=commit, dirty=True, diff=digest)


def read_environment() -> Environment:
    """Return interpreter, platform, library versions and device of this process."""
    import torch  # 1.6 s to import

    has_gpu = torch.cuda.is_available()
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        libraries={"sluice": sluice.__version__, **installed_versions(LIBRARIES)},
        device=torch.cuda.get_device_name(0) if has_gpu else "cpu",
        device_count=torch.cuda.device_count() if has_gpu else 0,
        cpu_count=count_cores(),
    )


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return the version of each distribution that is installed, by name."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _limit_length(diff: bytes) -> bytes:
    """Cut a long diff and append the length and digest of the whole diff."""
    if len(diff) <= MAX_DIFF_BYTES:
        return diff
    cut_note = f"\n# cut: {len(diff):,} bytes in all, SHA-256 {digest_bytes(diff)}\n"
    return diff[:MAX_DIFF_BYTES] + cut_note.encode()


def _git(cwd: Path, *arguments: str) -> bytes | None:
    """Return the output of git; None if git is not installed, fails, or exceeds its time limit."""
    # Variables such as GIT_DIR are removed: git hooks set them, and they select another repository.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        completed = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=cwd,
            env=environ,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout if completed.returncode == 0 else None
