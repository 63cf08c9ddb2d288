"""Mirroring of the registry's history to Weights & Biases and MLflow (TRK-1)."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.code_paths import CodeAcceptance
from sluice.registry.ledger import Ledger
from sluice.tracking import registry_mirror
from sluice.tracking.mlflow_mirror import MlflowChange
from sluice.tracking.registry_mirror import mirror_history
from sluice.tracking.settings import MlflowSettings, TrackingSettings
from sluice.tracking.tracked_run import TrackedRun
from sluice.tracking.wandb_fold_runs import training_group
from sluice.tracking.wandb_mirror import MirrorResult, mirror
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    poc_receipt,
    promote_chain,
    promotion_receipt,
    register_sample,
    sample_lineage,
)
from tests.sluice.registry.ledger_samples import SETTINGS as SAMPLE_SETTINGS

SETTINGS = TrackingSettings(mode="offline")


class MirrorStub:
    """Stub of ``mirror`` that records runs, or reports a failure if ``is_down``."""

    def __init__(self) -> None:
        self.runs: list[TrackedRun] = []
        self.is_down = False

    def __call__(self, run: TrackedRun, *_: object, **__: object) -> MirrorResult:
        if not self.is_down:
            self.runs.append(run)
        return MirrorResult(
            ok=not self.is_down,
            mode="offline",
            run_id=run.run_id,
            folder=None,
            reason="down" if self.is_down else "mirrored",
            seconds=0,
        )


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> MirrorStub:
    stub = MirrorStub()
    monkeypatch.setattr(registry_mirror, "mirror", stub)
    return stub


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def publish_history(ledger: Ledger, store: ArtifactStore) -> tuple[int, int]:
    folder = store.path("0" * 64).parent
    (publication,) = mirror_history(ledger, MODEL, SETTINGS, store=store, folder=folder, environ={})
    return publication.delivered, publication.waiting


def test_versions_and_promotions_are_mirrored_as_runs(
    tmp_path: Path, store: ArtifactStore, wandb: MirrorStub
) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        wandb.is_down = True
        assert publish_history(ledger, store) == (0, 7)
        wandb.is_down = False
        assert publish_history(ledger, store) == (7, 0)
        assert publish_history(ledger, store) == (0, 0)

    names = [run.name.removeprefix(f"{MODEL}-") for run in wandb.runs]
    assert names == ["1", "1-promote-1", "2", "2-promote-2", "1-rollback-3"]
    assert len({run.run_id for run in wandb.runs}) == 5
    assert [run.aliases for run in wandb.runs] == [
        (),
        ("production",),
        (),
        ("production",),
        ("production",),
    ]
    scalars = {s.name: s.value for s in wandb.runs[0].scalars}
    assert scalars["test/mse"] == 0.643
    lineage = sample_lineage(store)
    assert {name: value for name, value in scalars.items() if name.startswith("system/")} == {
        "system/training_seconds": lineage.training_seconds,
        "system/cpu_cores": lineage.environment.cpu_count,
        "system/accelerators": lineage.environment.device_count,
    }
    assert wandb.runs[0].tags == ("linear", "verdict:PROMOTE")
    assert wandb.runs[1].tags == ("promote",)


def test_run_of_a_rejected_candidate_has_verdict_and_reason(
    tmp_path: Path, store: ArtifactStore, wandb: MirrorStub
) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        lineage = sample_lineage(store)
        receipt = promotion_receipt(lineage.candidate, outcome="REJECT")
        ledger.register(MODEL, lineage, [poc_receipt(), receipt])
        assert publish_history(ledger, store) == (1, 0)

    (run,) = wandb.runs
    group = training_group(MODEL, data=lineage.data, config=lineage.config, code=lineage.code)
    assert run.tags == ("linear", "verdict:REJECT")
    assert receipt.reason
    assert run.notes == f"REJECT: {receipt.reason}"
    assert run.labels == {"training_group": group, "verdict": "REJECT"}


def test_loss_curves_are_read_from_the_event_log(
    tmp_path: Path, store: ArtifactStore, wandb: MirrorStub
) -> None:
    event = {"event": "epoch_complete", "seed": 0, "fold_id": 1, "epoch": 2}
    event |= {"train_loss": 0.5, "val_loss": 0.75}
    event_log = store.put(json.dumps(event).encode() + b"\n")
    lineage = sample_lineage(store).model_copy(update={"artifacts": {"event log": event_log}})
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        ledger.register(MODEL, lineage, [])
        assert publish_history(ledger, store) == (1, 0)

        curves = {s.name: (s.epoch, s.value) for s in wandb.runs[0].scalars if s.epoch}
        assert curves == {
            "train/seed0-fold1/loss": (2, 0.5),
            "val/seed0-fold1/loss": (2, 0.75),
        }


def test_entry_with_a_missing_event_log_stays_pending(
    tmp_path: Path, store: ArtifactStore, wandb: MirrorStub
) -> None:
    lineage = sample_lineage(store).model_copy(update={"artifacts": {"event log": "e" * 64}})
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        ledger.register(MODEL, lineage, [])

        assert publish_history(ledger, store) == (0, 1)
    assert wandb.runs == []


def test_approval_is_not_mirrored_as_a_run_and_does_not_block_the_promotion(
    tmp_path: Path, store: ArtifactStore, wandb: MirrorStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The following promotion is mirrored to W&B and MLflow with the receipt of the approval."""
    changes: list[MlflowChange] = []

    def record_change(change: MlflowChange, *_: object, **__: object) -> str:
        changes.append(change)
        return ""

    monkeypatch.setattr(registry_mirror, "mirror_to_mlflow", record_change)
    with_mlflow = SETTINGS.model_copy(update={"mlflow": MlflowSettings(uri="http://127.0.0.1:1")})
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        first = ledger.version(MODEL, 1).candidate
        register_sample(ledger, store, salt=2, reference=first)
        ledger.approve(MODEL, 2, actor="ada", reason="reviewed")
        required = ApprovalSettings(required=True)
        ledger.promote(
            MODEL, 2, expected=1, actor="a", reason="r", store=store, approval_settings=required
        )
        entries = [entry.action for entry in ledger.history(MODEL)]

        published = mirror_history(
            ledger, MODEL, with_mlflow, store=store, folder=tmp_path, environ={}
        )

    assert sorted(entries).count("approve") == 1
    assert [(publication.delivered, publication.waiting) for publication in published] == [
        (len(entries), 0)
    ] * 2
    assert sum("production" in run.aliases for run in wandb.runs) == 2
    assert [change.action for change in changes] == [e for e in entries if e != "approve"]
    assert "approval" in {receipt["gate"] for receipt in changes[-1].receipts}
    assert "approval" not in {receipt["gate"] for receipt in changes[0].receipts}


def test_event_log_of_an_imported_version_is_not_parsed(
    tmp_path: Path, store: ArtifactStore, wandb: MirrorStub
) -> None:
    """A malformed log would stop the mirror and the training that calls it permanently."""
    event_log = store.put(b'{"event": "epoch_complete", "seed": []}\n')
    lineage = sample_lineage(store).model_copy(update={"artifacts": {"event log": event_log}})
    code = CodeAcceptance(accepted_paths=(str(SAMPLE_SETTINGS["workload"]),), trusted_paths=())
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        ledger.import_version(lineage, [], actor="eve", reason="a file", code=code)

        assert publish_history(ledger, store) == (2, 0)
    assert len(wandb.runs) == 1
    assert not [s for s in wandb.runs[0].scalars if s.epoch]


def test_run_id_without_aliases_is_unchanged_and_depends_on_aliases(wandb: MirrorStub) -> None:
    del wandb
    run = TrackedRun(
        name="n", pipeline="p", candidate="c", config={}, manifest={}, scalars=(), tags=()
    )

    assert run.run_id == "77be6a13132a3e66"
    assert dataclasses.replace(run, aliases=("production",)).run_id != run.run_id


@pytest.mark.slow
def test_promotion_is_written_by_wandb(
    tmp_path: Path, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the promotion is written; test_wandb_mirror.py covers the run of a version."""
    stub = MirrorStub()

    def mirror_promotions(run: TrackedRun, *arguments: Any, **options: Any) -> MirrorResult:
        return (mirror if run.aliases else stub)(run, *arguments, **options)

    monkeypatch.setattr(registry_mirror, "mirror", mirror_promotions)
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 1)
        (publication,) = mirror_history(
            ledger, MODEL, SETTINGS, store=store, folder=tmp_path / "wandb", environ=os.environ
        )

    assert (publication.delivered, publication.waiting) == (3, 0), publication.reasons
    assert len(list((tmp_path / "wandb" / "wandb").glob("offline-run-*"))) == 1
