"""A Ray that Sluice starts listens on loopback only and imports no module of the working folder."""

import json
import os
import subprocess
import sys
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

import pytest

from sluice.base.errors import SettingsError
from sluice.cluster.ray_processes import _command_line
from sluice.cluster.ray_session import MachineResponse, _init_with_retries, last_line
from sluice.cluster.settings import ComputeSettings
from sluice.cluster.storage import tune_storage

ROOT = Path(__file__).parents[3]
SCRIPT = """
import contextlib, json
import psutil
from sluice.cluster.ray_pool import open_ray_pool
from sluice.cluster.ray_session import join_ray
from sluice.cluster.settings import ComputeSettings

compute = ComputeSettings()
with join_ray(compute) as ray:
    @ray.remote
    def find_modules():
        import importlib, sys
        return sys.path, importlib.import_module("tabnanny").__file__

    path, module = ray.get(find_modules.remote())
    with open_ray_pool(compute, max_workers=1, imports=["own_module"], folders=[]) as pool:
        while not pool.has_capacity():
            pool.next_message()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    sockets, commands = [], []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # the pool's worker ends meanwhile
            sockets += process.net_connections("tcp")
            commands.append(" ".join(process.cmdline()))
    listening = [socket.laddr.ip for socket in sockets if socket.status == "LISTEN"]
    has_token = ray._raylet.get_authentication_mode() == ray._raylet.AuthenticationMode.TOKEN
    session = ray._private.worker._global_node.get_session_dir_path()
seen = {"session": session, "path": path, "module": module, "listening": listening}
seen |= {"commands": commands, "has_token": has_token}
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_ray_listens_on_loopback_requires_a_token_and_ignores_the_working_folder(
    tmp_path: Path,
) -> None:
    working_folder, executed = tmp_path / "here", tmp_path / "executed"
    working_folder.mkdir()
    for name in ("tabnanny", "random", "yaml", "grpc", "sitecustomize"):
        (working_folder / f"{name}.py").write_text(
            f"open({str(executed)!r}, 'a').write('{name} ')\n"
        )
    (working_folder / "own_module.py").write_text("")
    prelude = "from pathlib import Path\nimport sys\nsys.path.append(str(Path.cwd()))\n"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", prelude + SCRIPT],
        cwd=working_folder,
        env=environ | {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    observed = json.loads(done.stdout.splitlines()[-1])

    assert not executed.exists(), executed.read_text()
    assert str(working_folder) not in observed["path"]
    assert not observed["module"].startswith(str(working_folder))
    addresses = [ip_address(address.removeprefix("::ffff:")) for address in observed["listening"]]
    assert len(addresses) > 5
    assert [str(address) for address in addresses if not address.is_loopback] == []
    assert observed["has_token"]
    assert any("raylet" in command for command in observed["commands"])
    for name in ("autoscaler/_private/monitor.py", "log_monitor.py"):
        assert not any(name in command for command in observed["commands"])
    # Ray makes its folders of sockets, logs and environments accessible to all users.
    private_folders = [
        f for f in Path(observed["session"]).parents if f.stat().st_mode & 0o077 == 0
    ]
    assert [f.name for f in private_folders if f.parent == Path(tempfile.gettempdir())] == [
        f"sluice-{os.getuid()}"
    ]
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600


class SlowRay:
    """A stand-in for Ray that starts a process per attempt and succeeds at the given attempt."""

    def __init__(self, attempt: int) -> None:
        self.attempt, self.calls, self.processes = attempt, [], []

    def init(self, _temp_dir) -> None:
        self.calls.append("init")
        script = "import time; time.sleep(600)"
        self.processes.append(subprocess.Popen([sys.executable, "-c", script, f"{_temp_dir}/s"]))
        if self.calls.count("init") < self.attempt:
            raise Exception("The current node timed out during startup. This could happen because")

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_a_slow_start_of_ray_is_retried(tmp_path):
    """The processes of failed attempts are ended, and no others."""
    unrelated = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ray, unstartable = SlowRay(3), SlowRay(4)
    try:
        _init_with_retries(ray, tmp_path)
        assert ray.calls == ["init", "shutdown", "init", "shutdown", "init"]
        assert None not in [process.poll() for process in ray.processes[:2]]

        with pytest.raises(RuntimeError, match="3 attempts; the machine is busy"):
            _init_with_retries(unstartable, tmp_path)
        assert None not in [process.poll() for process in unstartable.processes]
        assert [process.poll() for process in (unrelated, ray.processes[2])] == [None, None]
    finally:
        for process in (unrelated, *ray.processes, *unstartable.processes):
            process.kill()
            process.wait()


def test_an_empty_command_line_of_a_starting_process_is_read_again():
    class Starting:
        answers: ClassVar = [[], [], ["raylet", "--temp-dir=/x"]]

        def cmdline(self) -> list[str]:
            return self.answers.pop(0)

    assert _command_line(Starting()) == ["raylet", "--temp-dir=/x"]


@pytest.mark.parametrize(
    ("text", "message"), [("first\n  the reason.\n", "the reason"), ("", "RuntimeError")]
)
def test_the_reason_of_an_error_is_its_last_line(text, message):
    assert last_line(RuntimeError(text)) == message


def test_the_error_of_a_machine_that_cannot_read_the_storage_is_reported(tmp_path, monkeypatch):
    response = MachineResponse("b (10.0.0.2)", error="it cannot set up runtime_env")
    monkeypatch.setattr("sluice.cluster.storage.call_on_every_machine", lambda _: [response])

    with pytest.raises(SettingsError, match=r"10\.0\.0\.2\) .*: it cannot set up runtime_env\."):
        tune_storage(ComputeSettings(address="auto"), tmp_path)
