"""``sluice rollout watch`` reports the state of a rollout and changes nothing (ROLL-1)."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.cli.app import run_command
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import transitions
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout
from tests.sluice.registry.ledger_samples import MODEL, promote_chain, register_sample

pytestmark = pytest.mark.slow


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutLedger]:
    """A ledger with version 1 in production, and version 2 evaluated against it."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    store = ArtifactStore(tmp_path / "artifacts")
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    with RolloutLedger.open(url, clock=lambda: datetime.now(UTC)) as opened:
        promote_chain(opened, store, 1)
        register_sample(opened, store, salt=2, reference=opened.version(MODEL, 1).candidate)
        yield opened


def start(ledger: RolloutLedger) -> Rollout:
    return ledger.start_rollout(
        MODEL, 2, RolloutSettings(), actor="ada", reason="The gate said PROMOTE."
    ).rollout


def abort(ledger: RolloutLedger, rollout: Rollout) -> None:
    now = datetime.now(UTC)
    aborted = transitions.abort(rollout, now=now, actor="ada", reason="Enough [of] it.")
    ledger.record_transition(rollout, aborted)


def test_once_prints_the_current_state(
    ledger: RolloutLedger, capfd: pytest.CaptureFixture[str]
) -> None:
    rollout = start(ledger)
    assert run_command(["rollout", "watch", MODEL, "--once"]) == 0
    printed = " ".join(capfd.readouterr().out.split())
    for words in (
        "version 2 against version 1, rolling at step 1 of 4; lease ends in 1",
        "5 % of the users",
        "errors 0.1 167 ok",
        "no server has reported recently",
        "0.0 start 5 % The gate said PROMOTE.",
    ):
        assert words in printed
    assert ledger.rollout(MODEL) == rollout


def test_json_watch_prints_one_object_per_line_until_the_end(
    ledger: RolloutLedger, capfd: pytest.CaptureFixture[str]
) -> None:
    rollout = start(ledger)
    codes: list[int] = []
    watcher = threading.Thread(
        target=lambda: codes.append(run_command(["rollout", "watch", MODEL, "--json"]))
    )
    watcher.start()
    time.sleep(0.3)
    abort(ledger, rollout)
    watcher.join(20)
    assert codes == [0]
    statuses = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["rollout"]["phase"] for each in statuses][-1] == "rolled_back"
    assert statuses[-1]["transitions"][-1]["reason"] == "Enough [of] it."
    assert run_command(["rollout", "watch", MODEL]) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert "rolled back at step 1 of 4; in production: version 1" in printed
    assert "Enough [of] it." in printed


def test_each_transition_is_a_line_when_stdout_is_no_terminal(
    ledger: RolloutLedger, capfd: pytest.CaptureFixture[str]
) -> None:
    rollout = start(ledger)
    watcher = threading.Thread(target=lambda: run_command(["rollout", "watch", MODEL]))
    watcher.start()
    deadline, before = time.monotonic() + 20, ""
    while "The gate said PROMOTE." not in before and time.monotonic() < deadline:
        time.sleep(0.1)
        before += capfd.readouterr().out
    abort(ledger, rollout)
    watcher.join(20)
    after = capfd.readouterr().out

    assert before.strip() == "0.0 s  start, 5 %: The gate said PROMOTE."
    assert "abort, 0 %: Enough [of] it." in after.splitlines()[0]


def test_missing_rollout_and_unknown_model_are_reported(
    ledger: RolloutLedger, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ledger.rollout(MODEL) is None
    assert run_command(["rollout", "watch", MODEL, "--once"]) == 2
    assert "has had no rollout" in capfd.readouterr().err
    assert run_command(["rollout", "watch", "sp500_volatilty", "--once"]) == 2
    assert "Did you mean 'sp500_volatility'" in capfd.readouterr().err
