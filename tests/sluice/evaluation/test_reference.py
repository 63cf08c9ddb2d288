"""A version in production is scored with its own features on the candidate's rows (STAT-2)."""

import io
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from sluice.artifacts import ArtifactStore
from sluice.data.folds import Fold, walk_forward
from sluice.errors import ContractError
from sluice.evaluation.reference import score_version
from sluice.evaluation.scoring import ModelScores, score_production, window_digest
from sluice.models.scaled import prepare_model
from sluice.models.settings import ModelSettings
from sluice.registry.environment import Environment, GitState
from sluice.registry.lineage import Lineage
from sluice.training.members import Member
from sluice.training.weights import load_member, pack_model
from tests.support.echo import Echo, EchoSettings

MODEL = ModelSettings(architecture="linear")


def version_of(workload: Echo, path: str, store: ArtifactStore) -> Lineage:
    """Register nothing; describe a version with one seed and untrained weights per fold."""
    frame = workload.compute_features(workload.load_rows())
    members = []
    for fold in workload.plan_folds(frame):
        model = prepare_model(workload, MODEL, workload.examples(frame, fold.train), seed=7)
        members.append(
            Member(
                seed=7,
                fold_id=fold.fold_id,
                weights=store.put(pack_model(model)),
                event_log=store.put(b""),
                best_epoch=1,
                epochs_run=1,
                train_loss=1.0,
                val_loss=1.0,
                test_metrics={"loss": 1.0},
                trained_through=str(frame.index[fold.val.stop - 1]),
                seconds=1.0,
            )
        )
    return Lineage(
        model="echo",
        candidate="c" * 64,
        data="d" * 64,
        config="e" * 64,
        resolved_config={
            "workload": path,
            "workload_settings": workload.settings.model_dump(mode="json"),
            "model": MODEL.model_dump(mode="json"),
        },
        code="f" * 64,
        git=GitState(commit="unknown", dirty=None, diff=None),
        seeds=(7,),
        members=tuple(members),
        metrics={"loss": 1.0},
        reference="baseline",
        training_seconds=1.0,
        environment=Environment(
            python="3", platform="", libraries={}, device="cpu", device_count=0, cpu_count=1
        ),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def score_both(
    lineage: Lineage, workload: Echo, store: ArtifactStore, *, code: str = "f" * 64
) -> tuple[ModelScores, str]:
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    folds = workload.plan_folds(frame)
    window = window_digest(frame, folds)
    return score_version(
        lineage, workload, raw, frame, folds, store, window=window, code=code
    ), window


def score(lineage: Lineage, workload: Echo, store: ArtifactStore, *, code: str = "f" * 64):
    scores, window = score_both(lineage, workload, store, code=code)
    return scores.by_seed, window


def test_same_settings_are_scored_like_production(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of(workload, "tests.support.echo:Echo", store)
    frame = workload.compute_features(workload.load_rows())

    both, window = score_both(lineage, workload, store)

    direct = score_production(
        workload,
        frame,
        workload.plan_folds(frame),
        lineage.members,
        lambda m: load_member(m, workload, MODEL, store),
        subject=lineage.candidate,
    )
    for seen, expected in (
        (both.by_seed, direct.by_seed),
        (both.deployed, direct.deployed),
    ):
        assert np.array_equal(seen.losses.loss_SN, expected.losses.loss_SN)
        assert seen.losses.window == seen.metric_table.window == window
    assert both.deployed.losses.is_deterministic


def test_other_settings_keep_their_own_features_on_the_same_rows(tmp_path: Path) -> None:
    store, old = ArtifactStore(tmp_path), Echo(EchoSettings(seq_len=5))
    lineage = version_of(old, "tests.support.echo:Echo", store)
    own, _ = score(lineage, old, store)

    new, window = score(lineage, Echo(EchoSettings(seq_len=2)), store)

    assert np.array_equal(new.losses.loss_SN, own.losses.loss_SN)
    assert np.array_equal(new.losses.label_N, own.losses.label_N)
    assert new.losses.window == window


def test_other_target_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = version_of(Echo(), "tests.support.echo:Louder", store)

    with pytest.raises(ContractError, match="must predict the same target"):
        score(lineage, Echo(), store)


def with_recorded_losses(lineage: Lineage, workload: Echo, store: ArtifactStore, factor: float):
    """Record what the version's losses were when it was made, times ``factor``."""
    scores, _ = score(lineage, workload, store)
    frame = scores.losses.to_frame()
    frame["loss"] *= factor
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return lineage.model_copy(update={"artifacts": {"losses": store.put(buffer.getvalue())}})


def test_changed_code_that_still_makes_the_same_losses_is_fine(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of(workload, "tests.support.echo:Echo", store)
    lineage = with_recorded_losses(lineage, workload, store, 1.0)

    scores, _ = score(lineage, workload, store, code="9" * 64)

    assert np.isfinite(scores.losses.loss_SN).all()


def test_changed_code_that_makes_other_losses_is_refused(tmp_path: Path) -> None:
    """Old networks on new features would lose, and the candidate would win for nothing."""
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of(workload, "tests.support.echo:Echo", store)
    lineage = with_recorded_losses(lineage, workload, store, 1.001)

    with pytest.raises(ContractError, match="must still make its recorded losses"):
        score(lineage, workload, store, code="9" * 64)


def test_settings_that_no_longer_exist_say_which_version(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = version_of(Echo(), "tests.support.echo:Echo", store)
    config = lineage.resolved_config | {"workload_settings": {"sequence": 3}}
    lineage = lineage.model_copy(update={"resolved_config": config})

    with pytest.raises(ContractError, match="version in production cannot be built"):
        score(lineage, Echo(), store)


def test_rows_that_production_lacks_are_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = version_of(Echo(), "tests.support.echo:Late", store)

    with pytest.raises(ContractError, match="features lack 100 of them"):
        score(lineage, Echo(), store)


def test_folds_of_the_samples_are_the_default_ones() -> None:
    workload = Echo()
    frame = workload.compute_features(workload.load_rows())

    folds = workload.plan_folds(frame)

    assert folds == walk_forward(len(frame), workload.settings.folds, horizon_rows=1)
    assert all(isinstance(fold, Fold) for fold in folds)
