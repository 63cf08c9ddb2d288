"""The circumstances of a run (REPRO-5): git state, interpreter, libraries, device."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from pydantic import Field

from sluice import __version__
from sluice.base.artifacts import ArtifactStore
from sluice.base.cpu_count import count_cores
from sluice.base.digests import digest_bytes
from sluice.base.settings import Record

UNKNOWN = "unknown"

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
"""What can change a number or a decision; every other version follows from the lock files."""

GIT_TIMEOUT_S = 20.0

MAX_DIFF_BYTES = 4 * 1024 * 1024
"""A longer diff, as of a binary file that was changed, is cut there [bytes]."""


class GitState(Record):
    """What git says about the folder the run started in."""

    commit: str = Field(description="Full hash, or 'unknown' outside a repository.")
    dirty: bool | None = Field(description="Uncommitted changes; None when git cannot tell.")
    diff: str | None = Field(description="Digest of the diff against the commit; None when clean.")


class Environment(Record):
    """What ran the training."""

    python: str
    platform: str = Field(description="Operating system, release and processor architecture.")
    libraries: dict[str, str] = Field(description="Version by distribution name.")
    device: str = Field(description="'cpu', or the accelerator's name.")
    device_count: int = Field(description="Accelerators visible; 0 on the CPU.")
    cpu_count: int = Field(description="Cores this process may use.")


def read_git(cwd: Path, *, store: ArtifactStore | None) -> GitState:
    """Return commit, dirty state and diff digest of the repository around ``cwd``.

    The diff covers tracked files; untracked ones make the state dirty and are listed by name at
    its end. With a store, the diff is kept there under its digest. One that is longer than
    ``MAX_DIFF_BYTES`` is cut, and ends with its length and the digest of the whole.
    """
    commit = _git(cwd, "rev-parse", "--verify", "--quiet", "HEAD")
    status = _git(cwd, "status", "--porcelain")
    if status is None:
        return GitState(commit=UNKNOWN, dirty=None, diff=None)
    name = UNKNOWN if commit is None else commit.decode().strip()
    if not status.strip():
        return GitState(commit=name, dirty=False, diff=None)
    tracked = _git(cwd, "diff", "--binary", "HEAD") if commit is not None else b""
    diff = _bounded((tracked or b"") + b"\n# git status --porcelain\n" + status)
    digest = store.put(diff) if store is not None else digest_bytes(diff)
    return GitState(commit=name, dirty=True, diff=digest)


def read_environment() -> Environment:
    """Return interpreter, platform, library versions and device of this process."""
    import torch  # 1.6 s to import

    on_gpu = torch.cuda.is_available()
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        libraries={"sluice": __version__, **installed_versions(LIBRARIES)},
        device=torch.cuda.get_device_name(0) if on_gpu else "cpu",
        device_count=torch.cuda.device_count() if on_gpu else 0,
        cpu_count=count_cores(),
    )


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return the version of each distribution; ones that are not installed are left out."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _bounded(diff: bytes) -> bytes:
    if len(diff) <= MAX_DIFF_BYTES:
        return diff
    end = f"\n# cut: {len(diff):,} bytes in all, SHA-256 {digest_bytes(diff)}\n"
    return diff[:MAX_DIFF_BYTES] + end.encode()


def _git(cwd: Path, *arguments: str) -> bytes | None:
    """Return what git prints, or None when it is absent, refuses, or takes too long."""
    # GIT_DIR and its kind are set while a git hook runs and would name another repository.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=cwd,
            env=environ,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
