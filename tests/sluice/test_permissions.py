"""Files and folders that Sluice creates are private for any umask; shared ones stay shared."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import StorageError
from sluice.base.files import make_user_temporary_folder, write_secret
from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.cluster.ray_token import keep_token_private, ray_token_path
from sluice.pipelines.instance import open_instance
from sluice.registry.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def umask_0() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "deep" / "home"
    return Home.from_environment({"SLUICE_HOME": str(folder)}, cwd=tmp_path)


def get_mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_registry(home: Home) -> None:
    Ledger.open(home.registry_url, clock=lambda: datetime.now(UTC)).close()


def put_artifact(home: Home) -> None:
    ArtifactStore(home.artifacts).put(b"x")


def open_dagster(home: Home) -> None:
    with open_instance(home):
        assert get_mode(home.dagster / "dagster.yaml") == 0o600


@pytest.mark.parametrize("create_state", [open_registry, put_artifact, open_dagster])
def test_state_folder_is_private_whichever_component_creates_it(home, create_state):
    create_state(home)

    assert get_mode(home.root) == 0o700
    assert get_mode(home.root.parent) == 0o777  # not created by Sluice


def test_existing_shared_state_folder_keeps_its_permissions(home):
    home.root.mkdir(parents=True, mode=0o770)
    put_artifact(home)

    assert get_mode(home.root) == 0o770


@pytest.mark.slow
@pytest.mark.parametrize("command", [["doctor"], ["poc", "digits", "--minimum"]])
def test_commands_make_the_state_folder_private(home, command):
    process = subprocess.run(
        ["sh", "-c", 'umask 0; exec "$@"', "sh", sys.executable, "-m", "sluice", *command],
        env=os.environ | {"SLUICE_HOME": str(home.root), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )

    assert home.root.is_dir(), process.stderr
    assert get_mode(home.root) == 0o700


@pytest.mark.parametrize("exposed", ["root", "key", "token"])
def test_doctor_reports_readable_paths_and_a_command_that_fixes_them(
    home, exposed, tmp_path, monkeypatch, capfd
):
    key = tmp_path / "a key"
    monkeypatch.setenv("SLUICE_HOME", str(home.root))
    monkeypatch.setenv("SLUICE_REGISTRY_KEY", str(key))
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = {"root": home.root, "key": key, "token": ray_token_path()}
    home.root.mkdir(parents=True, mode=0o700)
    for path in (key, ray_token_path()):
        write_secret(path, b"0" * 64)

    def get_permissions_check() -> dict[str, object]:
        run_command(["doctor", "--json"])
        checks = json.loads(capfd.readouterr().out)
        return next(e for e in checks if e["name"] == "permissions")

    assert get_permissions_check()["healthy"] is True
    paths[exposed].chmod(0o755)
    check = get_permissions_check()
    assert check["healthy"] is False
    assert f"{paths[exposed]} must be accessible to its owner only" in str(check["seen"])
    command = str(check["fix"]).removeprefix("Run: ")
    subprocess.run(command, shell=True, check=True)
    assert get_permissions_check()["healthy"] is True


def test_temporary_folder_is_private_and_a_symbolic_link_is_rejected(tmp_path):
    folder = make_user_temporary_folder(tmp_path)
    assert get_mode(folder) == 0o700

    folder.chmod(0o777)
    assert get_mode(make_user_temporary_folder(tmp_path)) == 0o700

    target = tmp_path / "elsewhere"
    folder.rename(target)
    target.chmod(0o777)
    folder.symlink_to(target)
    with pytest.raises(StorageError, match="must be a folder that user"):
        make_user_temporary_folder(tmp_path)
    assert get_mode(target) == 0o777


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change the owner of a folder")
def test_temporary_folder_of_another_user_is_rejected(tmp_path):
    folder = make_user_temporary_folder(tmp_path)
    os.chown(folder, 65534, 65534)

    with pytest.raises(StorageError, match="Another user of this machine created it first"):
        make_user_temporary_folder(tmp_path)


def test_ray_token_is_readable_only_by_its_owner(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)

    keep_token_private()
    first = ray_token_path().read_bytes()
    assert (len(first), get_mode(ray_token_path())) == (64, 0o600)

    ray_token_path().chmod(0o644)  # the mode with which Ray writes it
    keep_token_private()
    assert get_mode(ray_token_path()) == 0o600
    assert ray_token_path().read_bytes() == first


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "x"), ("RAY_AUTH_TOKEN_PATH", "/x")],
)
def test_no_ray_token_is_created_if_the_user_configures_one(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(name, value)

    keep_token_private()

    assert not ray_token_path().exists()
