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


def version_of(
    workload: Echo, path: str, store: ArtifactStore, settings: ModelSettings = MODEL
) -> Lineage:
    """Register nothing; describe a version with one seed and untrained weights per fold."""
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


def score_both(
    lineage: Lineage, workload: Echo, store: ArtifactStore, code: CodeSource = "current"
) -> tuple[ModelScores, str]:
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    folds = workload.plan_folds(frame)
    window = window_digest(frame, folds)
    version = as_version(lineage)
    return score_version(version, workload, raw, frame, folds, store, code=code), window


def score(lineage: Lineage, workload: Echo, store: ArtifactStore):
    scores, window = score_both(lineage, workload, store)
    return scores.by_seed, window


def test_same_settings_are_scored_like_production(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of(workload, "tests.support.echo:Echo", store)
    frame = workload.compute_features(workload.load_rows())

    both, window = score_both(lineage, workload, store)

    direct = score_members(
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
    lineage = version_of(Echo(), "tests.support.echo:ShiftedTarget", store)

    with pytest.raises(ContractError, match="must predict the target of the current workload"):
        score(lineage, Echo(), store)


def version_of_user(workload: Echo, store: ArtifactStore, path: str = ECHO) -> Lineage:
    """Describe a version whose network is the user's, with its losses and its code stored."""
    settings = ModelSettings(architecture="probe_net:Net")
    lineage = version_of(workload, path, store, settings)
    identity = identify_code(workload, settings)
    archive = store.put(pack_code(collect_own_modules(workload, settings)))
    lineage = lineage.model_copy(update={"code": identity.digest, "code_identity": identity})
    recorded = with_recorded_losses(lineage, workload, store, 1.0)
    return recorded.model_copy(update={"artifacts": recorded.artifacts | {CODE_ROLE: archive}})


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserCode:
    return UserCode(tmp_path / "user", monkeypatch)


def test_a_changed_module_of_the_network_is_not_scored_silently(
    tmp_path: Path, user: UserCode
) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of_user(workload, store)
    before, _ = score_both(lineage, workload, store)
    user.change()

    with pytest.raises(ContractError, match="does not reproduce its recorded losses") as refused:
        score(lineage, workload, store)
    assert "module probe_layers changed" in refused.value.what
    assert f"({lineage.code[:12]}, now " in refused.value.what
    assert "production_code=stored" in refused.value.fix

    own, _ = score_both(lineage, workload, store, code="stored")
    assert np.array_equal(own.by_seed.losses.loss_SN, before.by_seed.losses.loss_SN)
    assert before.note == ""
    assert "scored with its stored code" in own.note
    assert "module probe_layers changed" in own.note


def test_a_changed_comment_is_scored_with_a_note(tmp_path: Path, user: UserCode) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of_user(workload, store)
    user.change(layers=f"# new\n{LAYERS}")

    scores, _ = score_both(lineage, workload, store)

    assert "reproduces its recorded losses on" in scores.note
    assert "module probe_layers changed" in scores.note


def test_other_code_is_refused_when_no_recorded_row_is_left(tmp_path: Path, user: UserCode) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of_user(workload, store)
    user.change(layers=f"# new\n{LAYERS}")
    kept = {CODE_ROLE: lineage.artifacts[CODE_ROLE]}

    with pytest.raises(CodeMismatch, match=r"cannot be compared.*because none were stored"):
        score(lineage.model_copy(update={"artifacts": kept}), workload, store)


@pytest.mark.parametrize("content", [b"", b"no table", b"PAR1" * 9])
def test_recorded_losses_that_are_no_table_are_refused(tmp_path: Path, content: bytes) -> None:
    """They may have come in a version file."""
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of(workload, ECHO, store)
    lineage = lineage.model_copy(update={"artifacts": {"losses": store.put(content)}})

    with pytest.raises(IntegrityError, match="but it cannot be opened"):
        score(lineage, workload, store)


def test_a_version_without_parts_of_its_code_is_scored_with_a_note(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), Echo()

    scores, _ = score_both(version_of(workload, ECHO, store), workload, store)

    assert "stored with the digest of its code only" in scores.note


class Stricter(Echo):
    """Another loss of the same target."""

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        return 100 * super().losses(output, y)


def test_both_arms_have_the_losses_of_the_candidate(tmp_path: Path) -> None:
    """A loss in other units would decide by its units."""
    store = ArtifactStore(tmp_path)
    lineage = version_of(Echo(), ECHO, store)
    own, _ = score(lineage, Echo(), store)

    judged, _ = score(lineage, Stricter(), store)

    assert np.allclose(judged.losses.loss_SN, 100 * own.losses.loss_SN)


def test_rows_in_an_order_that_no_setting_gives_any_more_are_not_compared(tmp_path: Path) -> None:
    store, workload = ArtifactStore(tmp_path), DigitsWorkload()
    lineage = version_of(Echo(), ECHO, store)
    config = lineage.resolved_config | {
        "workload": "sluice.workloads.digits:DigitsWorkload",
        "workload_settings": {"order_seed": 0},
    }
    lineage = lineage.model_copy(update={"resolved_config": config})

    with pytest.raises(ContractError, match="was trained with 'order_seed'") as refused:
        score(lineage, workload, store)
    assert "Use another pipeline name" in refused.value.fix


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

    scores, _ = score(lineage, workload, store)

    assert np.isfinite(scores.losses.loss_SN).all()


def test_changed_code_that_makes_other_losses_is_refused(tmp_path: Path) -> None:
    """Old networks on new features would lose, and the candidate would win for nothing."""
    store, workload = ArtifactStore(tmp_path), Echo()
    lineage = version_of(workload, "tests.support.echo:Echo", store)
    lineage = with_recorded_losses(lineage, workload, store, 1.001)

    with pytest.raises(ContractError, match="does not reproduce its recorded losses"):
        score(lineage, workload, store)


def test_settings_that_no_longer_exist_say_which_version(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = version_of(Echo(), "tests.support.echo:Echo", store)
    config = lineage.resolved_config | {"workload_settings": {"sequence": 3}}
    lineage = lineage.model_copy(update={"resolved_config": config})

    with pytest.raises(ContractError, match=r"version of .* cannot be rebuilt"):
        score(lineage, Echo(), store)


def test_rows_that_production_lacks_are_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    lineage = version_of(Echo(), "tests.support.echo:LateFeatures", store)

    with pytest.raises(ContractError, match="features lack 100 of them"):
        score(lineage, Echo(), store)


def test_rows_between_the_test_rows_are_refused() -> None:
    frame = Echo().compute_features(Echo().load_rows())
    fold = Echo().plan_folds(frame)[0]
    index = pd.Index([str(label) for label in frame.index])
    version_index = index.insert(fold.test.start + 1, "between")

    with pytest.raises(ContractError, match="own features have other rows between them"):
        _fold_at_same_labels(fold, index, version_index, "The version")


def test_folds_of_the_samples_are_the_default_ones() -> None:
    workload = Echo()
    frame = workload.compute_features(workload.load_rows())

    folds = workload.plan_folds(frame)

    assert folds == walk_forward(len(frame), workload.settings.folds, horizon_rows=1)
    assert all(isinstance(fold, Fold) for fold in folds)
