"""Installs exactly what the lock files contain into ``.venv``; does nothing if it is up to date.

Run by every make target through setup.sh; needs only the standard library of Python 3.11. The
digests of what was installed are written to ``.venv/sluice-setup.json`` after each installation.
The next set-up thus detects an interrupted one and starts again. A set-up waits while another one
is running.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXIT_USER_ERROR = 2
"""Exit code if the user must change something on this machine: Python, the disk or ``.venv``."""
EXIT_INSTALL_FAILED = 3
"""Exit code if an installer failed."""
MAX_LOG_LINES = 30
DEFAULT_FIX = "Is the network up and the disk not full? Run the same command again."


class SetupFailed(Exception):
    """The set-up cannot continue; the message states what to do."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def environment_digest(root: Path) -> str:
    """Return a digest of everything that decides which packages are installed.

    It includes the path of the checkout, because an environment cannot be moved.
    """
    sha = hashlib.sha256(f"{root}\n{sys.version}\n{sys.base_prefix}\n".encode())
    for name in ("lock.txt", "dev.txt", "torch.txt", "torch-cpu.txt", "bootstrap.py"):
        sha.update((root / "requirements" / name).read_bytes())
    return sha.hexdigest()


def project_digest(root: Path) -> str:
    """Return a digest of everything that decides how the project itself is installed."""
    return hashlib.sha256((root / "pyproject.toml").read_bytes()).hexdigest()


def torch_file(report: dict[str, Any], cpu_lock: str) -> str:
    """Return the lock file with the build of torch to install on this machine.

    The CPU build is chosen only if pip would install it and torch-cpu.txt contains its hash. In all
    other cases the build of torch.txt is installed.

    Args:
        report: Report of ``pip install --dry-run --report`` for torch.
        cpu_lock: Text of torch-cpu.txt.
    """
    picked = report["install"][0]
    archive = picked["download_info"].get("archive_info", {})
    sha = archive.get("hashes", {}).get("sha256", "")
    is_cpu = str(picked["metadata"]["version"]).endswith("+cpu")
    return "torch-cpu.txt" if is_cpu and sha and f"sha256:{sha}" in cpu_lock else "torch.txt"


class Environment:
    """The virtual environment of one checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self._key = environment_digest(root)
        self._state_file = self.folder / "sluice-setup.json"
        self._log_file = self.folder / "setup.log"

    def make_ready(self, *, with_project: bool) -> None:
        """Bring the environment up to date with the lock files and pyproject.toml.

        Args:
            with_project: Whether Sluice itself is installed as well. `make lock` does not need it,
                and cannot install it while the lock files do not yet match pyproject.toml.

        Raises:
            SetupFailed: Something is missing on this machine, or an installer failed.
        """
        if not self._steps(with_project=with_project):
            return
        with self._locked():
            # Another set-up may have completed the steps while this one waited.
            steps = self._steps(with_project=with_project)
            for number, (title, step) in enumerate(steps, start=1):
                with _progress(f"[{number}/{len(steps)}] {title}"):
                    step()

    def _steps(self, *, with_project: bool) -> list[tuple[str, Callable[[], None]]]:
        state = self._read_state()
        steps: list[tuple[str, Callable[[], None]]] = []
        if state.get("environment") != self._key or not self.python.exists():
            steps += [
                ("creating .venv", self._create),
                ("installing the locked packages (minutes)", self._install_locked),
            ]
        if with_project and (steps or state.get("project") != project_digest(self.root)):
            steps.append(("installing sluice itself", self._install_project))
        return steps

    def _read_state(self) -> dict[str, str]:
        try:
            state = json.loads(self._state_file.read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write_state(self, **state: str) -> None:
        temporary = self._state_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(state))
        os.replace(temporary, self._state_file)

    def _clear(self) -> None:
        """Empty the folder of an outdated or incomplete environment.

        Raises:
            SetupFailed: Another program created the environment.
        """
        if self.folder.is_dir() and any(self.folder.iterdir()) and not self._state_file.exists():
            raise SetupFailed(
                f"{self.folder} exists and was not made by this Makefile. "
                "Move it away or remove it, then run again.",
                exit_code=EXIT_USER_ERROR,
            )
        self.folder.mkdir(exist_ok=True)
        self._write_state(environment="unfinished")  # the removal may be interrupted as well
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != self._state_file:
                path.unlink()

    def _create(self) -> None:
        if (
            importlib.util.find_spec("venv") is None
            or importlib.util.find_spec("ensurepip") is None
        ):
            raise SetupFailed(
                f"{sys.executable} has no venv module with pip. Install it (on Debian: "
                "apt-get install python3-venv), or name another Python: make PYTHON=...",
                exit_code=EXIT_USER_ERROR,
            )
        self._clear()
        # If this script runs in a virtual environment, use its base interpreter: the environment
        # may be removed.
        python = getattr(sys, "_base_executable", None) or sys.executable
        self._call([python, "-m", "venv", str(self.folder)])

    def _install_locked(self) -> None:
        requirements = self.root / "requirements"
        torch = torch_file(self._torch_report(), (requirements / "torch-cpu.txt").read_text())
        # --no-deps: the lock files are complete, which `pip check` verifies afterwards.
        # Only wheels: a source package would download build tools without a hash. Python compiles a
        # module when it is first imported; to compile all would take a third of the time.
        files = [str(requirements / name) for name in ("lock.txt", "dev.txt", torch)]
        self._pip(
            *("install", "--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile"),
            *(word for file in files for word in ("-r", file)),
        )
        self._write_state(environment=self._key)

    def _torch_report(self) -> dict[str, Any]:
        text = (self.root / "requirements" / "torch.txt").read_text()
        pin = re.search(r"^torch==[^ ;\\]+", text, flags=re.MULTILINE)
        assert pin is not None
        path = self.folder / "torch-report.json"
        # Do not pass hashes: pip would prefer the file that matches one, even if another build is
        # the one for this machine.
        self._pip("install", "--dry-run", "--no-deps", "--report", str(path), pin[0])
        report: dict[str, Any] = json.loads(path.read_text())
        return report

    def _install_project(self) -> None:
        editable = ("--no-build-isolation", "--no-index", "-e", str(self.root))
        self._pip("install", "--no-deps", *editable)
        self._pip("check", fix="If pyproject.toml changed, run `make lock`, then this again.")
        self._write_state(environment=self._key, project=project_digest(self.root))

    def _pip(self, *arguments: str, fix: str = DEFAULT_FIX) -> None:
        pip = (str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input")
        self._call([*pip, *arguments], fix=fix)

    def _call(self, command: Sequence[str], *, fix: str = DEFAULT_FIX) -> None:
        with self._log_file.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root
            )
        if done.returncode:
            lines = self._log_file.read_bytes()[start:].decode(errors="replace").splitlines()
            raise SetupFailed(
                "\n".join(lines[-MAX_LOG_LINES:])
                + f"\nThis failed: {' '.join(command)}\nAll output is in {self._log_file}. {fix}",
                exit_code=EXIT_INSTALL_FAILED,
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.root / "requirements" / "bootstrap.py").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("another set-up is running; waiting for it", file=sys.stderr)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def main(arguments: Sequence[str]) -> int:
    """Make the environment ready; return the exit code."""
    environment = Environment(ROOT)
    try:
        environment.make_ready(with_project="--locked-only" not in arguments)
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"Cannot set up {environment.folder}: {error}.", file=sys.stderr)
        print("Free the disk or make the folder writable, then run again.", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("\ninterrupted; the next run repairs the set-up", file=sys.stderr)
        return 130
    return 0


@contextlib.contextmanager
def _progress(title: str) -> Iterator[None]:
    start = time.monotonic()
    print(f"{title} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    except BaseException:
        print(" failed", file=sys.stderr)
        raise
    print(f" {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
