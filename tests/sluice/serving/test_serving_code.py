"""A server serves a version only with the code that it was trained with."""

import asyncio
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import CodeMismatch
from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.cli.doctor import DoctorSettings, examine
from sluice.registry.rollouts import RolloutLedger
from sluice.serving.log import json_log
from sluice.serving.server_spec import ServerSpec, open_server
from sluice.serving.settings import ServingSettings
from sluice.serving.tokens import Tokens
from tests.sluice.registry.code_samples import UserCode, promote_version
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain

ONES = np.ones((1, 8, 2), np.float32)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserCode:
    return UserCode(tmp_path / "user", monkeypatch)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    return Home.from_environment(os.environ, cwd=tmp_path)


@pytest.fixture
def store(home: Home) -> ArtifactStore:
    return ArtifactStore(home.artifacts)


@pytest.fixture
def ledger(home: Home) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(home.registry_url, clock=Clock()) as opened:
        yield opened


def server_spec(home: Home, *, code: str = "current") -> ServerSpec:
    return ServerSpec(
        model=MODEL,
        settings=ServingSettings(),
        registry_url=home.registry_url,
        artifacts=home.artifacts,
        tokens=Tokens.of(),
        code=code,
    )


def test_serve_refuses_a_version_with_changed_code_and_names_the_module(
    ledger: RolloutLedger,
    store: ArtifactStore,
    user: UserCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    promote_version(ledger, store, user.lineage(store))
    user.change()

    assert run_command(["serve", MODEL, "--port", "0"]) == CodeMismatch.exit_code
    output = capsys.readouterr().err
    assert "version 1 must run with the code that it was trained with" in output
    assert "module probe_layers changed" in output
    assert "--code stored" in output


def test_the_stored_code_option_serves_the_same_predictions(
    ledger: RolloutLedger, home: Home, store: ArtifactStore, user: UserCode
) -> None:
    promote_version(ledger, store, user.lineage(store))
    with open_server(server_spec(home), clock=Clock(), log=json_log(io.StringIO())) as serving:
        before = serving.router.table.production.deployed.predict(ONES, None)
    user.change()
    log = io.StringIO()

    with open_server(server_spec(home, code="stored"), clock=Clock(), log=json_log(log)) as serving:
        after = serving.router.table.production.deployed.predict(ONES, None)

    assert np.array_equal(after, before)
    assert "with their stored code" in json.loads(log.getvalue())["what"]


def test_a_server_keeps_its_version_when_production_moves_to_other_code(
    ledger: RolloutLedger, home: Home, store: ArtifactStore, user: UserCode
) -> None:
    first = promote_version(ledger, store, user.lineage(store))
    imported = user.imported_modules()
    with open_server(server_spec(home), clock=Clock(), log=json_log(io.StringIO())) as serving:
        user.change()
        promote_version(ledger, store, user.lineage(store, salt=1), before=first)
        sys.modules.update(imported)

        async def follow() -> None:
            while not serving.split_sync.has_problem("production"):
                await serving.split_sync.poll()

        asyncio.run(asyncio.wait_for(follow(), 60))

        assert serving.router.table.production.deployed.version == first
        assert "module probe_layers changed" in serving.split_sync.problem("production")


def test_verify_and_doctor_report_production_of_other_code(
    ledger: RolloutLedger,
    home: Home,
    store: ArtifactStore,
    user: UserCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    promote_version(ledger, store, user.lineage(store))
    assert run_command(["registry", "verify"]) == 0
    user.change()

    assert run_command(["registry", "verify", "--json"]) != 0
    out = capsys.readouterr().out
    (finding,) = json.loads(out[out.index("{") :])["findings"]
    assert (finding["problem"], finding["version"]) == ("code", 1)
    assert "module probe_layers changed" in finding["what"]
    examined = {e.name: e for e in examine(home, home.root / "none", DoctorSettings())}
    assert not examined[f"production of {MODEL}"].healthy


def test_verify_skips_code_that_cannot_be_imported(
    ledger: RolloutLedger, store: ArtifactStore, user: UserCode
) -> None:
    promote_version(ledger, store, user.lineage(store))
    (user.folder / "probe_net.py").unlink()
    user.forget()

    assert run_command(["registry", "verify"]) == 0


def test_the_rollback_command_warns_that_the_code_stays(
    ledger: RolloutLedger,
    store: ArtifactStore,
    user: UserCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = promote_version(ledger, store, user.lineage(store))
    user.change()
    promote_version(ledger, store, user.lineage(store, salt=1), before=first)

    assert run_command(["registry", "rollback", MODEL, "--reason", "errors"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "production is now version 1" in output
    assert "The code was not rolled back" in output
    assert "module probe_layers changed" in output


def test_a_version_without_stored_code_is_served_with_a_warning(
    ledger: RolloutLedger, home: Home, store: ArtifactStore
) -> None:
    promote_chain(ledger, store, 1)
    log = io.StringIO()

    with open_server(server_spec(home), clock=Clock(), log=json_log(log)) as serving:
        assert serving.router.table.production.deployed.version == 1

    (line,) = [json.loads(text) for text in log.getvalue().splitlines()]
    assert line["level"] == "warning"
    assert "version 1 was stored with the digest of its code only" in line["what"]
