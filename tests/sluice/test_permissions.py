"""What Sluice makes is its owner's alone, whatever the umask; what was shared stays shared."""

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
from sluice.base.files import user_temporary_folder, write_secret
from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.cluster.ray_token import keep_token_private, ray_token_path
from sluice.pipelines.instance import open_instance
from sluice.registry.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "deep" / "home"
    return Home.from_environment({"SLUICE_HOME": str(folder)}, cwd=tmp_path)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def open_registry(home: Home) -> None:
    Ledger.open(home.registry_url, clock=lambda: datetime.now(UTC)).close()


def put_artifact(home: Home) -> None:
    ArtifactStore(home.artifacts).put(b"x")


def open_dagster(home: Home) -> None:
    with open_instance(home):
        assert mode(home.dagster / "dagster.yaml") == 0o600


@pytest.mark.parametrize("first", [open_registry, put_artifact, open_dagster])
def test_whatever_makes_the_state_folder_first_makes_it_private(home, first):
    first(home)

    assert mode(home.root) == 0o700
    assert mode(home.root.parent) == 0o777  # not ours


def test_a_folder_that_is_shared_on_purpose_stays_so(home):
    home.root.mkdir(parents=True, mode=0o770)
    put_artifact(home)

    assert mode(home.root) == 0o770


@pytest.mark.slow
@pytest.mark.parametrize("command", [["doctor"], ["poc", "digits", "--minimum"]])
def test_commands_make_the_state_folder_private(home, command):
    done = subprocess.run(
        ["sh", "-c", 'umask 0; exec "$@"', "sh", sys.executable, "-m", "sluice", *command],
        env=os.environ | {"SLUICE_HOME": str(home.root), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )

    assert home.root.is_dir(), done.stderr
    assert mode(home.root) == 0o700


@pytest.mark.parametrize("opened", ["root", "key", "token"])
def test_doctor_names_what_others_can_read_and_the_command_that_closes_it(
    home, opened, tmp_path, monkeypatch, capfd
):
    key = tmp_path / "a key"
    monkeypatch.setenv("SLUICE_HOME", str(home.root))
    monkeypatch.setenv("SLUICE_REGISTRY_KEY", str(key))
    monkeypatch.setenv("HOME", str(tmp_path))
    places = {"root": home.root, "key": key, "token": ray_token_path()}
    home.root.mkdir(parents=True, mode=0o700)
    for path in (key, ray_token_path()):
        write_secret(path, b"0" * 64)

    def permissions() -> dict[str, object]:
        run_command(["doctor", "--json"])
        found = json.loads(capfd.readouterr().out)
        return next(e for e in found if e["name"] == "permissions")

    assert permissions()["healthy"] is True
    places[opened].chmod(0o755)
    told = permissions()
    assert told["healthy"] is False
    assert f"{places[opened]} must be accessible to its owner only" in str(told["seen"])
    command = str(told["fix"]).removeprefix("Run: ")
    subprocess.run(command, shell=True, check=True)
    assert permissions()["healthy"] is True


def test_a_folder_in_tmp_is_closed_and_used_only_when_it_is_ours(tmp_path):
    folder = user_temporary_folder(tmp_path)
    assert mode(folder) == 0o700

    folder.chmod(0o777)
    assert mode(user_temporary_folder(tmp_path)) == 0o700

    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    elsewhere.chmod(0o777)
    folder.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="must be a folder that user"):
        user_temporary_folder(tmp_path)
    assert mode(elsewhere) == 0o777


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_a_folder_that_another_user_made_first_is_refused(tmp_path):
    folder = user_temporary_folder(tmp_path)
    os.chown(folder, 65534, 65534)

    with pytest.raises(StorageError, match="Another user of this machine created it first"):
        user_temporary_folder(tmp_path)


def test_rays_token_is_closed_to_others(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)

    keep_token_private()
    first = ray_token_path().read_bytes()
    assert (len(first), mode(ray_token_path())) == (64, 0o600)

    ray_token_path().chmod(0o644)  # as Ray itself writes it
    keep_token_private()
    assert mode(ray_token_path()) == 0o600
    assert ray_token_path().read_bytes() == first


@pytest.mark.parametrize(
    ("name", "value"),
    [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "x"), ("RAY_AUTH_TOKEN_PATH", "/x")],
)
def test_a_users_own_choice_of_a_token_is_left_alone(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(name, value)

    keep_token_private()

    assert not ray_token_path().exists()
