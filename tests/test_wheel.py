"""A wheel that is installed outside of the checkout trains, replays traces and opens the UI."""

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluice
from sluice.base.errors import EXIT_GATE_BLOCKED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
QUICK = (
    *("--set", "training.max_epochs=3"),
    *("--set", "workload_settings.folds.num_folds=1"),
)


def call(*command: str, cwd: Path, allowed: tuple[int, ...] = (0,), **environ: str) -> str:
    """Run a command without the Python and Sluice settings of this process; return its output."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLUICE", "DAGSTER"))
    }
    done = subprocess.run(
        command, cwd=cwd, env=inherited | environ, capture_output=True, text=True, check=False
    )
    assert done.returncode in allowed, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the committed sources."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "sluice"
    call("git", "clone", "-q", str(ROOT), str(source), cwd=folder)
    for name in ("pyproject.toml", "README.md"):  # as they are now, committed or not
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta as b; print(b.build_wheel(sys.argv[1]))"
    call(sys.executable, "-c", build, str(folder), cwd=source)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel and with the other packages of this one."""
    folder = tmp_path_factory.mktemp("wheel-env") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder.parent)
    site = Path(
        call(
            str(folder / "bin" / "python"),
            "-c",
            "import sysconfig; print(sysconfig.get_path('purelib'))",
            cwd=folder,
        ).strip()
    )
    # Python searches the paths in a .pth file, but does not read the .pth files there. The editable
    # install of the checkout is thus not found.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))
    offline = ("--no-deps", "--no-index", "--ignore-installed", "--quiet")
    call(*pip, "install", *offline, str(wheel), cwd=folder)
    where = call(
        str(folder / "bin" / "python"), "-c", "import sluice; print(sluice.__file__)", cwd=folder
    )
    assert Path(where.strip()).is_relative_to(site)
    return folder / "bin"


def test_wheel_contains_exactly_the_tracked_files(wheel: Path) -> None:
    tracked = call("git", "ls-files", "sluice", "assets", "checks", "pipelines", cwd=ROOT).split()
    files = {name for name in tracked if not (ROOT / name).is_symlink()}
    packaged = {name if name.startswith("sluice/") else f"sluice/{name}" for name in files}

    with zipfile.ZipFile(wheel) as archive:
        contained = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert contained == packaged


def test_wheel_has_name_version_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
        licence = archive.read(name.replace("METADATA", "licenses/LICENSE"))

    assert "\nName: sluice-mlops\n" in metadata
    assert f"\nVersion: {sluice.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert licence == (ROOT / "LICENSE").read_bytes()


@pytest.fixture(scope="module")
def trained(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the wheel ran the pipeline digits, and the output of the run."""
    folder = tmp_path_factory.mktemp("work")
    home = str(folder / "home")
    command = (str(installed / "sluice"), "run", "digits", "--no-rehearsal", *QUICK)
    # After three epochs, the candidate may or may not beat the baseline.
    return folder, call(*command, cwd=folder, allowed=(0, EXIT_GATE_BLOCKED), SLUICE_HOME=home)


@pytest.mark.exhaustive
def test_default_training_writes_a_replay(trained: tuple[Path, str], installed: Path) -> None:
    folder, output = trained

    assert "on the test rows" in output
    assert f"{installed}/sluice registry show digits" in output
    (replay, *_) = (folder / "home" / "reports").glob("replays/digits/*.html")
    assert "<script" in replay.read_text()


def test_trace_of_a_script_is_replayed(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "net = torch.nn.Linear(4, 1)\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(20):\n"
        "    x = torch.randn(8, 4)\n"
        "    opt.zero_grad()\n"
        "    (net(x) - x.sum(1, keepdim=True)).square().mean().backward()\n"
        "    opt.step()\n"
    )
    sluice = str(installed / "sluice")

    call(
        sluice,
        "trace",
        "--out",
        "traces",
        "--",
        str(installed / "python"),
        "train.py",
        cwd=tmp_path,
    )
    page = Path(call(sluice, "trace", "replay", "traces", cwd=tmp_path).split()[-1])

    assert "<script" in (tmp_path / page).read_text()


QUERY = """
{ repositoriesOrError {
    ... on RepositoryConnection { nodes { assetNodes { assetKey { path } } } }
    ... on PythonError { message }
} }
"""


@pytest.fixture
def ui(installed: Path, trained: tuple[Path, str]) -> Iterator[str]:
    """The address of ``sluice dev``, started from the wheel."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder, _ = trained
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SLUICE", "DAGSTER"))
    }
    with (folder / "dev.log").open("wb") as log:
        server = subprocess.Popen(
            [str(installed / "sluice"), "dev", "--port", str(port)],
            cwd=folder,
            env=environ | {"SLUICE_HOME": str(folder / "home")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def query_ui(address: str, *, max_wait_s: float) -> dict[str, object]:
    """Return the response to QUERY; wait for the server to start."""
    body = json.dumps({"query": QUERY}).encode()
    request = urllib.request.Request(
        f"{address}/graphql", body, {"Content-Type": "application/json"}
    )
    started = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                reply: dict[str, object] = json.load(response)
                return reply
        except OSError:
            if time.monotonic() - started > max_wait_s:
                raise
            time.sleep(0.5)


@pytest.mark.exhaustive
def test_ui_shows_the_assets_of_the_pipelines(ui: str) -> None:
    reply = query_ui(ui, max_wait_s=120)

    found = reply["data"]["repositoriesOrError"]  # type: ignore[index]
    assert "nodes" in found, found
    keys = {"/".join(a["assetKey"]["path"]) for node in found["nodes"] for a in node["assetNodes"]}
    assert {"digits/candidate", "sp500_volatility/production_model"} <= keys
