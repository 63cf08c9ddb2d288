"""REPRO-5: lock files with hashes, the choice of the torch build, and a set-up that recovers."""

import fcntl
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from requirements import bootstrap, lock

ROOT = Path(__file__).resolve().parent.parent
HASH = "0" * 64
COMPILED = f"""\
filelock==4.2.11 \\
    --hash=sha256:{HASH}
    # via torch
cuda-bindings==13.5.0 ; sys_platform == 'linux' \\
    --hash=sha256:{HASH}
    # via torch
only-cuda==1.0 \\
    --hash=sha256:{HASH}
    # via
    #   cuda-bindings
    #   nvidia-cudnn-cu13
for-only-cuda==1.0 \\
    --hash=sha256:{HASH}
    # via only-cuda
shared==1.0 \\
    --hash=sha256:{HASH}
    # via
    #   cuda-bindings
    #   filelock
nvidia-cudnn-cu13==9.20 ; sys_platform == 'linux' \\
    --hash=sha256:{HASH}
    # via torch
root==2.0 \\
    --hash=sha256:{HASH}
torch==2.13.0 \\
    --hash=sha256:{HASH}
    # via
    #   -c requirements/constraints.txt
    #   sluice-mlops (pyproject.toml)
triton==3.7.1 ; sys_platform == 'linux' \\
    --hash=sha256:{HASH}
    # via torch
"""


def names(pins) -> list[str]:
    return [pin.name for pin in pins]


def test_torch_and_packages_only_for_cuda_are_separated():
    others, torch = lock.split_torch(lock.read_pins(COMPILED))

    assert names(others) == ["filelock", "shared", "root"]
    assert names(torch) == [
        "cuda-bindings",
        "only-cuda",
        "for-only-cuda",
        "nvidia-cudnn-cu13",
        "torch",
        "triton",
    ]


def test_constraints_file_is_no_parent_of_a_package():
    (torch,) = (pin for pin in lock.read_pins(COMPILED) if pin.name == "torch")

    assert torch.parents == {"sluice-mlops (pyproject.toml)"}


def test_split_keeps_every_line():
    others, torch = lock.split_torch(lock.read_pins(COMPILED))

    assert sorted("".join(p.text for p in (*others, *torch)).splitlines()) == sorted(
        COMPILED.splitlines()
    )


@pytest.mark.parametrize("version", ["2.13.1", None])
def test_torch_without_known_cpu_build_is_rejected(version):
    pins = [p for p in lock.read_pins(COMPILED) if p.name != "torch" or version]
    pins = [p._replace(version=version) if p.name == "torch" else p for p in pins]

    with pytest.raises(ValueError, match=r"torch must be locked once, as 2\.13\.0, got"):
        lock.split_torch(pins)


def test_line_that_is_no_pin_is_rejected():
    with pytest.raises(ValueError, match="must hold only 'name==version' pins, got '--index-url"):
        lock.read_pins("--index-url somewhere\n" + COMPILED)


def test_every_pin_has_hashes_and_is_in_one_file():
    seen: set[tuple[str, str]] = set()
    for name in ("lock.txt", "dev.txt", "torch.txt", "torch-cpu.txt"):
        for pin in lock.read_pins((ROOT / "requirements" / name).read_text()):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", pin.text), pin.name
            key = (pin.name, pin.text.splitlines()[0])  # versions for other Pythons have a marker
            assert key not in seen
            seen.add(key)
    assert lock.TORCH_VERSION in (ROOT / lock.CONSTRAINTS).read_text()


def test_every_dependency_of_the_project_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *itertools.chain(*project["optional-dependencies"].values()),
    ]
    required = {name_of(line) for line in wanted} - {
        project["name"]
    }  # an extra may name other extras

    assert required - locked_in("lock.txt", "dev.txt", "torch.txt") == set(), "run `make lock`"


def test_development_tools_are_locked_in_their_own_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    to_run = [*project["dependencies"], *extras["postgres"]]
    tools = {
        "pytest",
        "mypy",
        "playwright",
        "schemathesis",
        "uv",
        "cyclonedx-python-lib",
        "pip-audit",
    }

    assert {name_of(line) for line in to_run} <= locked_in("lock.txt", "torch.txt")
    assert tools <= {name_of(line) for line in extras["dev"]}
    assert tools <= locked_in("dev.txt")
    assert not locked_in("dev.txt") & locked_in("lock.txt", "torch.txt")


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower()


def locked_in(*names: str) -> set[str]:
    texts = [(ROOT / "requirements" / name).read_text() for name in names]
    return {pin.name for text in texts for pin in lock.read_pins(text)}


def test_no_locked_package_compiles_a_grammar_when_jsonschema_is_imported():
    """rfc3987-syntax takes 2 to 3 s in each process that imports Ray or Great Expectations."""
    texts = [(ROOT / "requirements" / name).read_text() for name in ("lock.txt", "dev.txt")]
    names = {pin.name for text in texts for pin in lock.read_pins(text)}

    assert "jsonschema" in names
    assert not names & {"rfc3987", "rfc3987-syntax", "lark"}


def test_package_needed_only_by_tools_is_written_to_dev_lock(tmp_path):
    lock.write_locks(tmp_path, lock.read_pins(COMPILED), to_run={"root", "filelock", "torch"})

    written = {
        name: names(lock.read_pins((tmp_path / name).read_text()))
        for name in ("lock.txt", "dev.txt", "torch.txt")
    }
    assert written["lock.txt"] == ["filelock", "root"]
    assert written["dev.txt"] == ["shared"]
    assert "torch" in written["torch.txt"]


def make_report(version: str, sha: str | None) -> dict:
    hashes = {"hashes": {"sha256": sha}} if sha else {}
    return {
        "install": [
            {"metadata": {"version": version}, "download_info": {"archive_info": hashes}},
        ]
    }


@pytest.mark.parametrize(
    ("version", "sha", "file"),
    [
        ("2.13.0+cpu", "a" * 64, "torch-cpu.txt"),
        ("2.13.0+cpu", "b" * 64, "torch.txt"),  # a CPU build whose hash is not locked
        ("2.13.0+cpu", None, "torch.txt"),
        ("2.13.0", "a" * 64, "torch.txt"),
        ("2.13.0+cu130", "a" * 64, "torch.txt"),
    ],
)
def test_cpu_build_is_installed_only_if_its_hash_is_locked(version, sha, file):
    cpu_lock = lock.cpu_pin(["c" * 64, "a" * 64])

    assert bootstrap.torch_file(make_report(version, sha), cpu_lock) == file


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout in which nothing is installed; the state file is written as after an install."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    for name in (
        *("lock.txt", "dev.txt", "torch.txt", "torch-cpu.txt"),
        *("bootstrap.py", "setup.sh"),
    ):
        shutil.copy(ROOT / "requirements" / name, root / "requirements" / name)
    (root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    monkeypatch.setattr(bootstrap.Environment, "_install_locked", _fake_locked)
    monkeypatch.setattr(bootstrap.Environment, "_create", _fake_create)
    monkeypatch.setattr(bootstrap.Environment, "_pip", lambda *_, **__: None)
    return root


def _fake_create(self):
    self._clear()
    self.python.parent.mkdir()
    self.python.symlink_to(sys.executable)


def _fake_locked(self):
    (self.folder / "installed").touch()
    self._write_state(environment=self._key)


def set_up(root: Path, *, with_project: bool = True) -> None:
    bootstrap.Environment(root).make_ready(with_project=with_project)


def finished_steps(text: str) -> list[str]:
    return re.findall(r"^(\[\d/\d\]) .* \d+ s$", text, flags=re.MULTILINE)


def test_set_up_prints_its_steps_and_runs_once(checkout, capfd):
    set_up(checkout)
    assert finished_steps(capfd.readouterr().err) == ["[1/3]", "[2/3]", "[3/3]"]

    set_up(checkout)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", ["lock.txt", "dev.txt", "torch.txt", "torch-cpu.txt", "bootstrap.py"]
)
def test_changed_lock_file_recreates_the_environment(checkout, capfd, name):
    set_up(checkout)
    (checkout / ".venv" / "left over").touch()
    with (checkout / "requirements" / name).open("a") as file:
        file.write("\n")

    set_up(checkout)

    assert len(finished_steps(capfd.readouterr().err)) == 6
    assert not (checkout / ".venv" / "left over").exists()


def test_changed_pyproject_reinstalls_only_the_project(checkout, capfd):
    set_up(checkout)
    (checkout / "pyproject.toml").write_text("[project]\nname = 'y'\n")
    capfd.readouterr()

    set_up(checkout)

    assert finished_steps(capfd.readouterr().err) == ["[1/1]"]


def test_moved_checkout_is_set_up_again(checkout, capfd):
    set_up(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    capfd.readouterr()

    set_up(moved)

    assert len(finished_steps(capfd.readouterr().err)) == 3


def test_missing_python_recreates_the_environment(checkout, capfd):
    set_up(checkout)
    (checkout / ".venv" / "bin" / "python").unlink()
    capfd.readouterr()

    set_up(checkout)

    assert len(finished_steps(capfd.readouterr().err)) == 3


@pytest.mark.parametrize("step", ["_create", "_install_locked", "_clear"])
def test_next_set_up_repairs_an_interrupted_one(checkout, capfd, monkeypatch, step):
    set_up(checkout)
    (checkout / "requirements" / "lock.txt").write_text("changed")

    def interrupted(self):
        (self.folder / "half").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap.Environment, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            set_up(checkout)
    capfd.readouterr()

    set_up(checkout)

    assert len(finished_steps(capfd.readouterr().err)) == 3
    assert not (checkout / ".venv" / "half").exists()


def test_environment_is_recreated_after_an_interrupted_removal(checkout, capfd, monkeypatch):
    """The old lock files are restored afterwards; the half-removed environment must not be used."""
    set_up(checkout)
    before = (checkout / "requirements" / "lock.txt").read_text()
    (checkout / "requirements" / "lock.txt").write_text("changed")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            set_up(checkout)
    (checkout / "requirements" / "lock.txt").write_text(before)
    capfd.readouterr()

    set_up(checkout)

    assert len(finished_steps(capfd.readouterr().err)) == 3


def _interrupt(*_):
    raise KeyboardInterrupt


def test_environment_of_another_tool_is_not_changed(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "mine").touch()

    with pytest.raises(bootstrap.SetupFailed, match="was not made by this Makefile"):
        set_up(checkout)

    assert (checkout / ".venv" / "bin" / "mine").exists()


def test_locking_needs_no_project(checkout, capfd):
    """pyproject.toml may be newer than the lock files before `make lock` writes them."""
    set_up(checkout, with_project=False)
    assert len(finished_steps(capfd.readouterr().err)) == 2

    set_up(checkout, with_project=False)
    assert capfd.readouterr() == ("", "")


def test_failing_installer_shows_the_end_of_its_output(checkout):
    environment = bootstrap.Environment(checkout)
    environment.folder.mkdir()
    script = "import sys; [print(i) for i in range(100)]; sys.exit('no such wheel')"

    with pytest.raises(
        bootstrap.SetupFailed, match=r"99\nno such wheel\nThis failed: .*\n.*setup\.log"
    ):
        environment._call([sys.executable, "-c", script])


def test_concurrent_set_up_waits_and_installs_nothing(checkout):
    """The first set-up is this process, which holds the file lock; the second is a subprocess."""
    environment = bootstrap.Environment(checkout)
    script = (
        "import sys; from pathlib import Path; from requirements import bootstrap as b;"
        "b.Environment._install_project = lambda self: sys.exit('installed twice');"
        "b.Environment(Path(sys.argv[1])).make_ready(with_project=True)"
    )
    with (checkout / "requirements" / "bootstrap.py").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, "-c", script, str(checkout)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert "waiting for it" in second.stderr.readline()
        for _, step in environment._steps(with_project=True):
            step()
    rest = second.communicate(timeout=20)[1]

    assert (second.returncode, rest) == (0, "")


@pytest.mark.parametrize(
    ("version", "code"), [("3.10", 2), ("3.14", 2), ("3.11", 0), ("3.12", 0), ("", 2)]
)
def test_unsupported_python_is_reported(checkout, version, code):
    """``setup.sh`` with a fake python3 on the path that prints a version or fails."""
    tools = checkout / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    fake = tools / "python3"
    fake.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 0\n[ -n "{version}" ] && echo {version}\n')
    fake.chmod(0o755)

    done = subprocess.run(
        [checkout / "requirements" / "setup.sh"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == code
    if code:
        assert "Sluice needs Python 3.11, 3.12 or 3.13" in done.stderr
        assert (f"python3 is {version}" if version else "no python3 was found") in done.stderr


def test_make_lists_its_targets():
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))

    targets = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"run", "test", "dev", "check", "lock", "clean"} <= targets


def test_the_state_file_is_json(checkout):
    set_up(checkout)

    state = json.loads((checkout / ".venv" / "sluice-setup.json").read_text())

    assert set(state) == {"environment", "project"}
