"""The process of a challenger cannot read the tokens and passwords of the server."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sluice.cluster.process import WORKER_ENVIRONMENT
from sluice.serving.arm_environment import arm_environment
from sluice.serving.isolation import Isolation
from sluice.serving.settings import ServingSettings
from tests.sluice.serving.serving_samples import quick_settings
from tests.sluice.serving.test_isolation import loader_spec
from tests.support.challengers import candidate

SECRETS = (
    "SLUICE_SERVE_TOKEN",
    "SLUICE_HOOK_TOKEN",
    "SLUICE_REGISTRY_URL",
    "SLUICE_REGISTRY_KEY",
    "SLUICE_ALERT_WEBHOOK",
    "PGPASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "WANDB_API_KEY",
    "HF_TOKEN",
    "RAY_AUTH_TOKEN",
    "HTTPS_PROXY",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "LD_PRELOAD_",
    "PATH_TO_KEY",
    "path",
)


def test_only_listed_variables_are_passed_to_the_process() -> None:
    environ = dict.fromkeys(SECRETS, "secret") | {"PATH": "/bin", "LC_ALL": "C", "MY_MODE": "fast"}

    assert (
        arm_environment(environ, extra_names=())
        == {"PATH": "/bin", "LC_ALL": "C"} | WORKER_ENVIRONMENT
    )
    assert arm_environment(environ, extra_names=("MY_MODE",))["MY_MODE"] == "fast"


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B"])
def test_an_invalid_variable_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="challenger_environment"):
        ServingSettings(challenger_environment=(name,))


@pytest.mark.slow
def test_a_challenger_cannot_read_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("MY_MODE", "fast")
    settings = quick_settings(challenger_environment=("MY_MODE",))
    with Isolation(loader_spec(tmp_path), settings) as isolation:
        isolation.load(candidate("curious"), threading.Event())
        environment = json.loads((tmp_path / "environment.json").read_text())

    assert "secret" not in environment.values()
    assert environment["MY_MODE"] == "fast"
    assert environment["PATH"] == os.environ["PATH"]


PARENT = """
import ctypes, os
from sluice.serving.arm_environment import hide_from_children
if os.geteuid() == 0:  # root may read everything
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: changing the user cleared it
{hide}
if os.fork():
    os.wait()
else:
    for name in ("environ", "mem", "maps", "fd"):
        path = f"/proc/{{os.getppid()}}/{{name}}"
        try:
            os.listdir(path) if name == "fd" else open(path, "rb").read(1)
            print(name, "read")
        except OSError:
            print(name, "refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_child_cannot_read_the_memory_of_a_hidden_parent() -> None:
    def read_parent(hide: str) -> set[str]:
        completed = subprocess.run(
            [sys.executable, "-c", PARENT.format(hide=hide)],
            capture_output=True,
            text=True,
            check=True,
        )
        return set(completed.stdout.splitlines())

    assert "environ read" in read_parent("pass")
    assert read_parent("hide_from_children()") == {
        "environ refused",
        "mem refused",
        "maps refused",
        "fd refused",
    }
