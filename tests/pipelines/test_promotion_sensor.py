"""The promotion sensor repeats failed promotions and skips unpromotable versions (REG-2)."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import RUN_KEY_TAG

from sluice.assets.candidate import CANDIDATE_KEY, RECEIPT_KEY, VERDICT_KEY, VERSION_KEY
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

WITHOUT_ROLLOUT = PIPELINE.model_copy(update={"rollout": None})
RULES = {"rules": WITHOUT_ROLLOUT.gate_settings_digest}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def ledger(tmp_path: Path, store: ArtifactStore) -> Iterator[RolloutLedger]:
    """A ledger with version 1 in production and the verdict PROMOTE for version 2."""
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


def evaluate_sensor(
    ledger: RolloutLedger,
    instance: dg.DagsterInstance,
    at: datetime,
    pipeline: PipelineSettings = WITHOUT_ROLLOUT,
) -> dg.RunRequest | str:
    """Return the run request of the sensor, or its skip message."""
    key = dg.AssetKey([MODEL, "candidate"])
    known = {VERDICT_KEY: "PROMOTE", VERSION_KEY: 2, RECEIPT_KEY: "r" * 64, CANDIDATE_KEY: "c" * 64}
    instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=known))
    event = instance.get_latest_materialization_event(key)
    result = next_request(
        pipeline.name,
        event,
        ledger,
        instance,
        has_rollout=pipeline.rollout is not None,
        gate_settings_digest=pipeline.gate_settings_digest,
        approval_settings=pipeline.approval,
        now=at,
    )
    return result if isinstance(result, dg.RunRequest) else str(result.skip_message)


def launch(instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.DagsterRun:
    return instance.create_run_for_job(
        dg.GraphDefinition("promotion").to_job(),
        status=dg.DagsterRunStatus.STARTED,
        tags={**request.tags, RUN_KEY_TAG: request.run_key},
    )


def test_failed_promotion_is_reported_and_requested_again(
    ledger: RolloutLedger, instance: dg.DagsterInstance
) -> None:
    first = evaluate_sensor(ledger, instance, NOW)
    assert isinstance(first, dg.RunRequest)
    run = launch(instance, first)
    while_running = evaluate_sensor(ledger, instance, NOW)
    instance.report_run_failed(run)
    after_failure = evaluate_sensor(ledger, instance, NOW)
    retry = evaluate_sensor(ledger, instance, NOW + timedelta(seconds=START_RETRY_S))

    assert f"run {run.run_id[:8]} of promotion is STARTED" in while_running
    assert f"run {run.run_id[:8]} of promotion is FAILURE since" in after_failure
    assert "another starts after 09:30 UTC" in after_failure
    assert isinstance(retry, dg.RunRequest)
    assert retry.run_key != first.run_key
    assert retry.run_config == first.run_config


def test_rolled_back_version_is_skipped_with_the_reason(
    ledger: RolloutLedger, instance: dg.DagsterInstance, store: ArtifactStore
) -> None:
    ledger.require_promotable(MODEL, 2)
    ledger.promote(MODEL, 2, expected=1, actor="ada", reason="better", store=store)
    assert "in production already" in evaluate_sensor(ledger, instance, NOW)
    ledger.rollback(MODEL, expected=2, actor="bob", reason="errors", store=store)

    messages = [evaluate_sensor(ledger, instance, NOW + timedelta(hours=n)) for n in range(3)]

    assert len(set(messages)) == 1
    assert "version 2 is PROMOTE, but it cannot be promoted" in messages[0]
    assert "rolled back by bob" in messages[0]
    with pytest.raises(GateBlocked, match="rolled back by bob"):
        ledger.require_promotable(MODEL, 2)
    with pytest.raises(UnknownVersion):
        ledger.require_promotable(MODEL, 7)
    assert ledger.production_number(MODEL) == 1


def test_version_evaluated_under_other_settings_is_skipped_with_the_reason(
    ledger: RolloutLedger, instance: dg.DagsterInstance
) -> None:
    gate = WITHOUT_ROLLOUT.gate.model_copy(update={"min_rows": WITHOUT_ROLLOUT.gate.min_rows + 1})
    changed = WITHOUT_ROLLOUT.model_copy(update={"gate": gate})

    assert "evaluated under gate, guard or suite settings" in evaluate_sensor(
        ledger, instance, NOW, changed
    )
