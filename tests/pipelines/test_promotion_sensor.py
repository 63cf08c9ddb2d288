"""REG-2: a promotion is asked for until it worked, and not while its evidence forbids it."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import RUN_KEY_TAG

from sluice.assets.candidate import CANDIDATE, RECEIPT, VERDICT, VERSION
from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, UnknownVersion
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.promotion_sensor import START_RETRY_S, next_request
from sluice.registry.rollouts import RolloutLedger
from tests.sluice.registry.ledger_samples import (
    MODEL,
    NOW,
    Clock,
    poc_receipt,
    promotion_receipt,
    sample_lineage,
)
from tests.sluice.rollout_control.controller_samples import PIPELINE

pytestmark = pytest.mark.slow

AT_ONCE = PIPELINE.model_copy(update={"rollout": None})
RULES = {"rules": AT_ONCE.promotion_rules_digest}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def ledger(tmp_path: Path, store: ArtifactStore) -> Iterator[RolloutLedger]:
    """Version 1 is in production, and the gate said PROMOTE for version 2."""
    with RolloutLedger.open(f"sqlite:///{tmp_path / 'registry.db'}", clock=Clock()) as opened:
        first = sample_lineage(store, salt=1)
        register = [poc_receipt(), promotion_receipt(first.candidate, subject=RULES)]
        opened.register(MODEL, first, register)
        opened.promote(MODEL, 1, expected=None, actor="ada", reason="first", store=store)
        second = sample_lineage(store, salt=2)
        decision = promotion_receipt(second.candidate, reference=first.candidate, subject=RULES)
        opened.register(MODEL, second, [poc_receipt(), decision])
        yield opened


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def ask(
    ledger: RolloutLedger,
    instance: dg.DagsterInstance,
    at: datetime,
    pipeline: PipelineSettings = AT_ONCE,
) -> dg.RunRequest | str:
    """Return what a tick asks for, or the reason why nothing."""
    key = dg.AssetKey([MODEL, "candidate"])
    known = {VERDICT: "PROMOTE", VERSION: 2, RECEIPT: "r" * 64, CANDIDATE: "c" * 64}
    instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=known))
    event = instance.get_latest_materialization_event(key)
    found = next_request(
        pipeline.name,
        event,
        ledger,
        instance,
        has_rollout=pipeline.rollout is not None,
        rules=pipeline.promotion_rules_digest,
        approval_settings=pipeline.approval,
        now=at,
    )
    return found if isinstance(found, dg.RunRequest) else str(found.skip_message)


def launch(instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.DagsterRun:
    return instance.create_run_for_job(
        dg.GraphDefinition("promotion").to_job(),
        status=dg.DagsterRunStatus.STARTED,
        tags={**request.tags, RUN_KEY_TAG: request.run_key},
    )


def test_a_promotion_that_failed_is_named_and_asked_for_again(
    ledger: RolloutLedger, instance: dg.DagsterInstance
) -> None:
    first = ask(ledger, instance, NOW)
    assert isinstance(first, dg.RunRequest)
    run = launch(instance, first)
    works = ask(ledger, instance, NOW)
    instance.report_run_failed(run)
    failed = ask(ledger, instance, NOW)
    again = ask(ledger, instance, NOW + timedelta(seconds=START_RETRY_S))

    assert f"run {run.run_id[:8]} of promotion is STARTED" in works
    assert f"run {run.run_id[:8]} of promotion is FAILURE since" in failed
    assert "another starts after 09:30 UTC" in failed
    assert isinstance(again, dg.RunRequest)
    assert again.run_key != first.run_key
    assert again.run_config == first.run_config


def test_a_version_that_was_rolled_back_is_kept_back_in_words(
    ledger: RolloutLedger, instance: dg.DagsterInstance, store: ArtifactStore
) -> None:
    ledger.require_promotable(MODEL, 2)
    ledger.promote(MODEL, 2, expected=1, actor="ada", reason="better", store=store)
    assert "in production already" in ask(ledger, instance, NOW)
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)

    hours = [ask(ledger, instance, NOW + timedelta(hours=n)) for n in range(3)]

    assert len(set(hours)) == 1
    assert "version 2 is PROMOTE, but it cannot be promoted" in hours[0]
    assert "rolled back by bob" in hours[0]
    with pytest.raises(GateBlocked, match="rolled back by bob"):
        ledger.require_promotable(MODEL, 2)
    with pytest.raises(UnknownVersion):
        ledger.require_promotable(MODEL, 7)
    assert ledger.production_number(MODEL) == 1


def test_a_version_judged_under_other_rules_is_kept_back_in_words(
    ledger: RolloutLedger, instance: dg.DagsterInstance
) -> None:
    gate = AT_ONCE.gate.model_copy(update={"min_rows": AT_ONCE.gate.min_rows + 1})
    changed = AT_ONCE.model_copy(update={"gate": gate})

    assert "evaluated under gate, guard or suite settings" in ask(ledger, instance, NOW, changed)
