"""A version in production is scored with its own features on the candidate's rows (STAT-2)."""

import io
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import Tensor

from sluice.base.artifacts import ArtifactStore
from sluice.base.environment import Environment, GitState
from sluice.base.errors import CodeMismatch, ContractError, IntegrityError
from sluice.data.folds import Fold, walk_forward
from sluice.evaluation.reference import _fold_at_same_labels, score_version
from sluice.evaluation.scoring import ModelScores, score_members, window_digest
from sluice.models.settings import ModelSettings
from sluice.registry.code_comparison import collect_own_modules
from sluice.registry.lineage import Lineage
from sluice.registry.stored_code import CODE_ROLE, CodeSource, pack_code
from sluice.training.code import identify_code
from sluice.training.members import Member
from sluice.training.weights import load_member, pack_model
from sluice.workloads.digits import DigitsWorkload
from sluice.workloads.prepare_model import prepare_model
from tests.sluice.registry.code_samples import LAYERS, UserCode
from tests.sluice.registry.ledger_samples import as_version
from tests.support.echo import Echo, EchoSettings

MODEL = ModelSettings(architecture="linear")
ECHO = "tests.support.echo:Echo"


def make_lineage(
    workload: Echo, path: str, store: ArtifactStore, settings: ModelSettings = MODEL
) -> Lineage:
    """Return an unregistered lineage with one seed and untrained weights per fold."""
    frame = workload.compute_features(workload.load_rows())
    members = []
    for fold in workload.plan_folds(frame):
        model = prepare_model(workload, settings, workload.examples(frame, fold.train), seed=7)
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
            "model": settings.model_dump(mode="json"),
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


def score_both_forms(
    lineage: Lineage, workload: Echo, store: ArtifactStore, code: CodeSource = "current"
) -> tuple[ModelScores, str]:
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    folds = workload.plan_folds(frame)
    window = window_digest(frame, folds)
    version = as_version(lineage)
    return score_version(version, workload, raw, frame, folds, store, code=code), window


def score_by_seed(lineage: Lineage, workload: Echo, store: ArtifactStore):
    scores, window = score_both_forms(lineage, workload, store)
    return scores.by_seed, window


def test_a_version_is_scored_like_its_members(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_lineage(workload, "tests.support.echo:Echo", store)
    frame = workload.compute_features(workload.load_rows())

    scores_of_version, window = score_both_forms(lineage, workload, store)

    direct = score_members(
        workload,
        frame,
        workload.plan_folds(frame),
        lineage.members,
        lambda m: load_member(m, workload, MODEL, store),
        subject=lineage.candidate,
    )
    for scores, expected in (
        (scores_of_version.by_seed, direct.by_seed),
        (scores_of_version.deployed, direct.deployed),
    ):
        assert np.array_equal(scores.losses.loss_SN, expected.losses.loss_SN)
        assert scores.losses.window == scores.metric_table.window == window
    assert scores_of_version.deployed.losses.is_deterministic


def test_a_version_with_other_settings_keeps_its_features_on_the_same_rows(tmp_path: Path) -> None:
    store, old = ArtifactStore(tmp_path), Echo(EchoSettings(seq_len=5))
    lineage = make_lineage(old, "tests.support.echo:Echo", store)
    own, _ = score_by_seed(lineage, old, store)

    new, window = score_by_seed(lineage, Echo(EchoSettings(seq_len=2)), store)

    assert np.array_equal(new.losses.loss_SN, own.losses.loss_SN)
    assert np.array_equal(new.losses.label_N, own.losses.label_N)
    assert new.losses.window == window


def test_a_version_with_another_target_is_rejected(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = make_lineage(Echo(), "tests.support.echo:ShiftedTarget", store)

    with pytest.raises(ContractError, match="must predict the target of the current workload"):
        score_by_seed(lineage, Echo(), store)


def make_user_lineage(workload: Echo, store: ArtifactStore, path: str = ECHO) -> Lineage:
    """Return a lineage with a network of the user, and with stored losses and code."""
    settings = ModelSettings(architecture="probe_net:Net")
    lineage = make_lineage(workload, path, store, settings)
    identity = identify_code(workload, settings)
    archive = store.put(pack_code(collect_own_modules(workload, settings)))
    lineage = lineage.model_copy(update={"code": identity.digest, "code_identity": identity})
    recorded = record_losses(lineage, workload, store, 1.0)
    return recorded.model_copy(update={"artifacts": recorded.artifacts | {CODE_ROLE: archive}})


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserCode:
    return UserCode(tmp_path / "user", monkeypatch)


def test_a_changed_network_is_rejected_or_scored_with_its_stored_code(
    tmp_path: Path, user_code: UserCode
) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_user_lineage(workload, store)
    before, _ = score_both_forms(lineage, workload, store)
    user_code.change()

    with pytest.raises(ContractError, match="does not reproduce its recorded losses") as raised:
        score_by_seed(lineage, workload, store)
    assert "module probe_layers changed" in raised.value.what
    assert f"({lineage.code[:12]}, now " in raised.value.what
    assert "production_code=stored" in raised.value.fix

    own, _ = score_both_forms(lineage, workload, store, code="stored")
    assert np.array_equal(own.by_seed.losses.loss_SN, before.by_seed.losses.loss_SN)
    assert before.note == ""
    assert "scored with its stored code" in own.note
    assert "module probe_layers changed" in own.note


def test_a_changed_comment_is_scored_with_a_note(tmp_path: Path, user_code: UserCode) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_user_lineage(workload, store)
    user_code.change(layers=f"# new\n{LAYERS}")

    scores, _ = score_both_forms(lineage, workload, store)

    num_losses = scores.by_seed.losses.loss_SN.size
    assert f"reproduces all {num_losses} recorded losses" in scores.note
    assert "module probe_layers changed" in scores.note


def test_changed_code_without_recorded_losses_is_rejected(
    tmp_path: Path, user_code: UserCode
) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_user_lineage(workload, store)
    user_code.change(layers=f"# new\n{LAYERS}")
    kept = {CODE_ROLE: lineage.artifacts[CODE_ROLE]}

    with pytest.raises(CodeMismatch, match=r"cannot be compared.*because none were stored"):
        score_by_seed(lineage.model_copy(update={"artifacts": kept}), workload, store)


@pytest.mark.parametrize("content", [b"", b"no table", b"PAR1" * 9])
def test_unreadable_recorded_losses_are_rejected(tmp_path: Path, content: bytes) -> None:
    """They may have been imported from a version file."""
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_lineage(workload, ECHO, store)
    lineage = lineage.model_copy(update={"artifacts": {"losses": store.put(content)}})

    with pytest.raises(IntegrityError, match="but it cannot be opened"):
        score_by_seed(lineage, workload, store)


def test_a_version_with_only_a_code_digest_is_scored_with_a_note(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()

    scores, _ = score_both_forms(make_lineage(workload, ECHO, store), workload, store)

    assert "stored with the digest of its code only" in scores.note


class ScaledLoss(Echo):
    """Workload with a scaled loss for the same target."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return 100 * super().losses(output, y)


def test_a_version_is_scored_with_the_loss_function_of_the_candidate(tmp_path: Path) -> None:
    """Losses in different units cannot be compared."""
    store = ArtifactStore(tmp_path)
    lineage = make_lineage(Echo(), ECHO, store)
    own, _ = score_by_seed(lineage, Echo(), store)

    scaled, _ = score_by_seed(lineage, ScaledLoss(), store)

    assert np.allclose(scaled.losses.loss_SN, 100 * own.losses.loss_SN)


def test_a_version_with_a_removed_order_setting_is_rejected(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), DigitsWorkload()
    lineage = make_lineage(Echo(), ECHO, store)
    config = lineage.resolved_config | {
        "workload": "sluice.workloads.digits:DigitsWorkload",
        "workload_settings": {"order_seed": 0},
    }
    lineage = lineage.model_copy(update={"resolved_config": config})

    with pytest.raises(ContractError, match="was trained with 'order_seed'") as raised:
        score_by_seed(lineage, workload, store)
    assert "Use another pipeline name" in raised.value.fix


def record_losses(lineage: Lineage, workload: Echo, store: ArtifactStore, factor: float):
    """Store the losses of the version, times ``factor``, as its recorded losses."""
    scores, _ = score_by_seed(lineage, workload, store)
    frame = scores.losses.to_frame()
    frame["loss"] *= factor
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return lineage.model_copy(update={"artifacts": {"losses": store.put(buffer.getvalue())}})


def test_changed_code_that_reproduces_the_losses_is_accepted(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_lineage(workload, "tests.support.echo:Echo", store)
    lineage = record_losses(lineage, workload, store, 1.0)

    scores, _ = score_by_seed(lineage, workload, store)

    assert np.isfinite(scores.losses.loss_SN).all()


def test_changed_code_with_other_losses_is_rejected(tmp_path: Path) -> None:
    """Old networks on new features are worse, which would promote the candidate wrongly."""
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = make_lineage(workload, "tests.support.echo:Echo", store)
    lineage = record_losses(lineage, workload, store, 1.001)

    with pytest.raises(ContractError, match="does not reproduce its recorded losses"):
        score_by_seed(lineage, workload, store)


def test_the_error_for_removed_settings_names_the_version(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = make_lineage(Echo(), "tests.support.echo:Echo", store)
    config = lineage.resolved_config | {"workload_settings": {"sequence": 3}}
    lineage = lineage.model_copy(update={"resolved_config": config})

    with pytest.raises(ContractError, match=r"version of .* cannot be rebuilt"):
        score_by_seed(lineage, Echo(), store)


def test_rows_without_features_of_production_are_rejected(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = make_lineage(Echo(), "tests.support.echo:LateFeatures", store)

    with pytest.raises(ContractError, match="features lack 100 of them"):
        score_by_seed(lineage, Echo(), store)


def test_additional_rows_between_the_test_rows_are_rejected() -> None:
    frame = Echo().compute_features(Echo().load_rows())
    fold = Echo().plan_folds(frame)[0]
    index = pd.Index([str(label) for label in frame.index])
    version_index = index.insert(fold.test.start + 1, "between")

    with pytest.raises(ContractError, match="own features have other rows between them"):
        _fold_at_same_labels(fold, index, version_index, "The version")


def test_the_sample_workload_uses_the_default_folds() -> None:
    workload = Echo()
    frame = workload.compute_features(workload.load_rows())

    folds = workload.plan_folds(frame)

    assert folds == walk_forward(len(frame), workload.settings.folds, horizon_rows=1)
    assert all(isinstance(fold, Fold) for fold in folds)
