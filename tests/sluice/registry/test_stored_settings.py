"""Versions stored by an earlier Sluice with settings that no longer exist."""

import os
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.base.home import Home
from sluice.cli.doctor import DoctorSettings, Examination, examine
from sluice.models.settings import ModelSettings
from sluice.registry.ledger import Ledger
from sluice.registry.lineage import Lineage
from sluice.registry.loading import rebuild_workload
from sluice.registry.stored_settings import REMOVED_SETTINGS
from sluice.serving.deployed import load_deployed, require_finite
from sluice.training.weights import pack_model
from sluice.workloads.digits import DigitsSettings, DigitsWorkload
from sluice.workloads.prepare_model import prepare_model
from tests.sluice.registry.ledger_samples import MODEL, Clock, as_version, sample_lineage
from tests.sluice.registry.test_loading import approve, promote, with_settings, with_weights

NETWORK = {"architecture": "sluice.models.small_cnn:SmallCnn", "hidden": 16}
OLD_SETTINGS = {
    "seq_len": 1,
    "folds": {"num_folds": 2, "first_test_share": 0.5, "val_share": 0.15, "embargo_rows": 0},
    "gate_loss": "log_loss",
    "order_seed": 0,
    "min_rows": 1000,
    "min_class_share": 0.02,
    "inverse_penalty": 1.0,
}
"""Settings of the pipeline ``digits`` as commit 07efbfe stored them."""


class SettingsWithOwnOrderSeed(DigitsSettings):
    order_seed: int = 3


class WorkloadWithOwnOrderSeed(DigitsWorkload):
    settings_type = SettingsWithOwnOrderSeed


class InheritingSettings(DigitsSettings):
    pass


class InheritingWorkload(DigitsWorkload):
    settings_type = InheritingSettings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=Path(os.sep))


@pytest.fixture
def own_store(home: Home) -> ArtifactStore:
    return ArtifactStore(home.artifacts)


def make_old_lineage(
    store: ArtifactStore, workload: str = "sluice.workloads.digits:DigitsWorkload"
):
    """Return lineage of an image network with the settings of an earlier Sluice."""
    digits_workload = DigitsWorkload()
    frame = digits_workload.compute_features(digits_workload.load_rows())
    fold = digits_workload.plan_folds(frame)[0]
    settings = ModelSettings(**NETWORK)
    model = prepare_model(
        digits_workload, settings, digits_workload.examples(frame, fold.train), seed=0
    )
    lineage = with_weights(sample_lineage(store), store.put(pack_model(model)))
    lineage = lineage.model_copy(update={"members": lineage.members[:1], "seeds": (0,)})
    return with_settings(
        lineage, {"workload": workload, "workload_settings": OLD_SETTINGS, "model": NETWORK}
    )


def promote_to_production(home: Home, store: ArtifactStore, lineage: Lineage) -> None:
    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        promote(ledger, store, approve(ledger, lineage))


def examine_production(home: Home) -> Examination:
    examinations = {e.name: e for e in examine(home, home.root / "no pipelines", DoctorSettings())}
    assert examinations["registry"].healthy
    return examinations[f"production of {MODEL}"]


@pytest.mark.slow
def test_production_with_a_removed_setting_is_served(home: Home, own_store: ArtifactStore) -> None:
    promote_to_production(home, own_store, make_old_lineage(own_store))

    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        version = ledger.production(MODEL)
        assert ledger.verify(None, store=own_store) == []
    require_finite(load_deployed(version, own_store))
    assert version.lineage.resolved_config["workload_settings"] == OLD_SETTINGS
    examination = examine_production(home)
    assert examination.healthy
    assert "its setting 'order_seed' no longer exists" in examination.seen


@pytest.mark.slow
def test_doctor_reports_a_production_version_that_serve_rejects(
    home: Home, own_store: ArtifactStore
) -> None:
    promote_to_production(home, own_store, sample_lineage(own_store))
    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        version = ledger.production(MODEL)
    own_store.path(version.lineage.members[1].weights).unlink()

    examinations = {e.name: e for e in examine(home, home.root / "none", DoctorSettings())}

    assert not examinations[f"production of {MODEL}"].healthy
    assert "is required and missing" in examinations[f"production of {MODEL}"].seen


def test_unknown_stored_setting_is_rejected_with_a_fix(
    own_store: ArtifactStore, home: Home
) -> None:
    lineage = make_old_lineage(own_store)
    settings = lineage.resolved_config["workload_settings"] | {"row_seed": 1}
    lineage = with_settings(lineage, lineage.resolved_config | {"workload_settings": settings})
    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        version = ledger.register(MODEL, lineage, []).version

    with pytest.raises(IntegrityError, match=r"'row_seed' is not a setting") as error:
        load_deployed(version, own_store)

    assert "order_seed" not in error.value.what
    assert "Make the settings class accept the stored settings" in error.value.fix


def test_removed_setting_is_dropped_unless_the_workload_defines_it(
    own_store: ArtifactStore,
) -> None:
    inheriting, _ = rebuild_workload(
        as_version(make_old_lineage(own_store, f"{__name__}:InheritingWorkload"))
    )
    with_own_setting, _ = rebuild_workload(
        as_version(make_old_lineage(own_store, f"{__name__}:WorkloadWithOwnOrderSeed"))
    )

    assert not hasattr(inheriting.settings, "order_seed")
    assert with_own_setting.settings.order_seed == 0


def test_removed_settings_do_not_exist_in_their_settings_class() -> None:
    from sluice.base.imports import import_object

    for removed in REMOVED_SETTINGS:
        assert (
            removed.name
            not in import_object(removed.settings_class_path, what="settings").model_fields
        )
