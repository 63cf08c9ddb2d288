"""``sluice rollout``: status, pause, resume and abort of a rollout (ROLL-1)."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sluice.base.current_user import current_user
from sluice.base.errors import ContractError, RolloutConflict, SluiceError, UnknownVersion
from sluice.cli import rollout
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.rollout_control.controller import reconcile
from tests.sluice.registry.ledger_samples import MODEL
from tests.sluice.rollout_control.conftest import template
from tests.sluice.rollout_control.controller_samples import (
    FAULTY,
    begin_rollout,
    read_rollout,
    report,
)

__all__ = ["template"]

SETTINGS = RolloutSettings(min_step_s=60, min_requests=500)


@pytest.fixture
def ledger(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RolloutLedger]:
    """A ledger with version 1 in production, version 2 promotable, and no rollout."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("SLUICE_REGISTRY_URL", "SLUICE_ACTOR", "SLUICE_REGISTRY_KEY"):
        monkeypatch.delenv(name, raising=False)
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    with RolloutLedger.open(url, clock=lambda: datetime.now(UTC)) as opened:
        yield opened


def invoke(*arguments: str) -> str:
    """Run a command in this process; return its output, or raise its error."""
    app = typer.Typer()
    rollout.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["rollout", *arguments])
    if isinstance(result.exception, SluiceError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def invoke_json(*arguments: str) -> Any:
    return json.loads(invoke(*arguments, "--json"))


def test_pause_resume_and_abort_record_actor_and_reason(ledger: RolloutLedger) -> None:
    begin_rollout(ledger, SETTINGS)
    printed = invoke("pause", MODEL, "--reason", "market opens")
    assert read_rollout(ledger).phase == "paused"
    assert "pause (sp500_volatility version 2, paused, 5 % of traffic): market opens" in printed
    assert invoke_json("resume", MODEL, "--actor", "bob")["outcome"] == "resume"
    assert read_rollout(ledger).phase == "rolling"
    invoke("abort", MODEL)
    split = ledger.traffic_split(MODEL)
    assert split is not None
    assert (read_rollout(ledger).phase, split.challenger) == ("rolled_back", None)

    transitions = ledger.rollout_transitions(read_rollout(ledger).id)
    assert [(t.outcome, t.actor, t.reason) for t in transitions[1:]] == [
        ("pause", current_user(), "market opens"),
        ("resume", "bob", "manual"),
        ("abort", current_user(), "manual"),
    ]


def test_pause_is_retried_after_a_concurrent_transition(
    ledger: RolloutLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = RolloutSettings(min_step_s=0, min_requests=1)
    begin_rollout(ledger, quick)
    report(ledger, at=datetime.now(UTC))
    record, reconciliations = RolloutLedger.record_transition, []

    def record_after_reconciling(self: RolloutLedger, *arguments: Any) -> None:
        if not reconciliations:
            reconciliations.append(1)
            done = reconcile(ledger, MODEL, now=datetime.now(UTC))
            assert done is not None
            assert done.outcome == "advance"
        record(self, *arguments)

    monkeypatch.setattr(RolloutLedger, "record_transition", record_after_reconciling)
    # The reconciliation also calls the patched method, so it is inserted only once.
    invoke("pause", MODEL)

    assert (read_rollout(ledger).phase, read_rollout(ledger).step) == ("paused", 1)


def test_abort_fails_after_repeated_conflicts(
    ledger: RolloutLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_rollout(ledger, SETTINGS)

    def refuse(*_: Any) -> None:
        raise RolloutConflict("Somebody was faster.", fix="Read it again.")

    monkeypatch.setattr(RolloutLedger, "record_transition", refuse)
    with pytest.raises(RolloutConflict, match="Somebody was faster"):
        invoke("abort", MODEL)


def test_status_reports_the_step_and_the_missing_evidence(ledger: RolloutLedger) -> None:
    begin_rollout(ledger, SETTINGS)
    report(ledger, at=datetime.now(UTC))
    printed = invoke("status", MODEL)

    for text in (
        "version 2 against version 1, rolling at step 1 of 4; lease ends in 1",
        "5 % of the users",
        "servers      1, 1 with the challenger",
        "start",
        "of 60 s have passed. Not enough evidence: 200 of 500 requests of the challenger",
    ):
        assert text in printed
    assert "time [s]" in printed
    assert "[/" not in printed  # markup is rendered
    facts = invoke_json("status", MODEL)
    assert facts["rollout"]["phase"] == "rolling"
    assert 170 < facts["lease_left_s"] <= 180
    assert facts["looked_at_now"]["outcome"] == "wait"
    assert len(facts["guards"]) == 4
    assert read_rollout(ledger).revision == 0  # reading the status changes nothing

    report(ledger, at=datetime.now(UTC), challenger=FAULTY)
    reconcile(ledger, MODEL, now=datetime.now(UTC))
    ended = invoke("status", MODEL)
    assert "rolled back at step 1 of 4; in production: version 1" in ended
    assert "ended with: roll back. The challenger is worse than production: 90 errors" in ended
    assert invoke_json("status", MODEL)["looked_at_now"] is None


def test_status_of_a_paused_rollout_reports_the_evidence_missing_after_resuming(
    ledger: RolloutLedger,
) -> None:
    begin_rollout(ledger, SETTINGS)
    invoke("pause", MODEL)
    printed = invoke("status", MODEL)

    assert "assessed now: wait. The rollout is paused" in printed
    assert (
        "if the rollout were resumed: wait. 0 of 60 s have passed. Not enough evidence: 0 of 500"
        in printed
    )
    assert read_rollout(ledger).phase == "paused"


def test_list_shows_each_rollout_with_its_outcome(ledger: RolloutLedger) -> None:
    assert "has had no rollout" in invoke("list", MODEL)
    first = begin_rollout(ledger, SETTINGS)
    invoke("abort", MODEL, "--reason", "not [today]")
    second = begin_rollout(ledger, SETTINGS)

    printed = invoke("list", MODEL).splitlines()
    assert first.id[:12] in printed[1]
    assert "rolled back" in printed[1]
    assert "not [today]" in printed[1]
    assert second.id[:12] in printed[2]
    found = invoke_json("list", MODEL)
    assert [(each["id"], each["phase"]) for each in found] == [
        (first.id, "rolled_back"),
        (second.id, "rolling"),
    ]


@pytest.mark.parametrize("command", ["status", "pause", "resume", "abort"])
def test_invalid_commands_are_reported(ledger: RolloutLedger, command: str) -> None:
    with pytest.raises(UnknownVersion, match="has had no rollout"):
        invoke(command, MODEL)
    with pytest.raises(UnknownVersion, match="sp500_volatility"):
        invoke(command, "sp501_volatility")
    if command == "status":
        return
    begin_rollout(ledger, SETTINGS)
    with pytest.raises(
        ContractError, match="requires a reason" if command != "resume" else "rolling"
    ):
        invoke(command, MODEL, "--reason", " ")
    invoke("abort", MODEL)
    with pytest.raises(ContractError, match="version 2 is in phase rolled_back"):
        invoke(command, MODEL)
