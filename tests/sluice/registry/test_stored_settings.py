"""A version stored by an earlier Sluice is read with the current settings."""

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
"""As commit 07efbfe stored them for the pipeline ``digits``."""


class ReseededSettings(DigitsSettings):
    order_seed: int = 3


class Reseeded(DigitsWorkload):
    settings_type = ReseededSettings


class InheritingSettings(DigitsSettings):
    pass


class Inheriting(DigitsWorkload):
    settings_type = InheritingSettings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.from_environment({"SLUICE_HOME": str(tmp_path)}, cwd=Path(os.sep))


@pytest.fixture
def own(home: Home) -> ArtifactStore:
    return ArtifactStore(home.artifacts)


def old_lineage(store: ArtifactStore, workload: str = "sluice.workloads.digits:DigitsWorkload"):
    """Lineage of an image network with settings of an earlier Sluice."""
    present = DigitsWorkload()
    frame = present.compute_features(present.load_rows())
    fold = present.plan_folds(frame)[0]
    settings = ModelSettings(**NETWORK)
    model = prepare_model(present, settings, present.examples(frame, fold.train), seed=0)
    lineage = with_weights(sample_lineage(store), store.put(pack_model(model)))
    lineage = lineage.model_copy(update={"members": lineage.members[:1], "seeds": (0,)})
    return with_settings(
        lineage, {"workload": workload, "workload_settings": OLD_SETTINGS, "model": NETWORK}
    )


def put_into_production(home: Home, store: ArtifactStore, lineage: Lineage) -> None:
    """As stored by commit 07efbfe, without changes."""
    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        promote(ledger, store, approve(ledger, lineage))


def production_examined(home: Home) -> Examination:
    found = {e.name: e for e in examine(home, home.root / "no pipelines", DoctorSettings())}
    assert found["registry"].healthy
    return found[f"production of {MODEL}"]


@pytest.mark.slow
def test_production_with_a_removed_setting_is_served(home: Home, own: ArtifactStore) -> None:
    put_into_production(home, own, old_lineage(own))

    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        version = ledger.production(MODEL)
        assert ledger.verify(None, store=own) == []
    require_finite(load_deployed(version, own))
    assert version.lineage.resolved_config["workload_settings"] == OLD_SETTINGS
    examined = production_examined(home)
    assert examined.healthy
    assert "its setting 'order_seed' no longer exists" in examined.seen


@pytest.mark.slow
def test_doctor_reports_a_production_version_that_serve_rejects(
    home: Home, own: ArtifactStore
) -> None:
    put_into_production(home, own, sample_lineage(own))
    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        version = ledger.production(MODEL)
    own.path(version.lineage.members[1].weights).unlink()

    examined = {e.name: e for e in examine(home, home.root / "none", DoctorSettings())}

    assert not examined[f"production of {MODEL}"].healthy
    assert "is required and missing" in examined[f"production of {MODEL}"].seen


def test_an_unknown_setting_is_rejected_with_a_fix(own: ArtifactStore, home: Home) -> None:
    lineage = old_lineage(own)
    settings = lineage.resolved_config["workload_settings"] | {"row_seed": 1}
    lineage = with_settings(lineage, lineage.resolved_config | {"workload_settings": settings})
    with Ledger.open(home.registry_url, clock=Clock()) as ledger:
        version = ledger.register(MODEL, lineage, []).version

    with pytest.raises(IntegrityError, match=r"'row_seed' is not a setting") as refused:
        load_deployed(version, own)

    assert "order_seed" not in refused.value.what
    assert "Make the settings class accept them again" in refused.value.fix


def test_a_workload_that_inherits_is_migrated_and_one_that_has_the_setting_keeps_it(
    own: ArtifactStore,
) -> None:
    inheriting, _ = rebuild_workload(as_version(old_lineage(own, f"{__name__}:Inheriting")))
    reseeded, _ = rebuild_workload(as_version(old_lineage(own, f"{__name__}:Reseeded")))

    assert not hasattr(inheriting.settings, "order_seed")
    assert reseeded.settings.order_seed == 0


def test_the_table_names_no_setting_that_exists() -> None:
    from sluice.base.imports import import_object

    for removed in REMOVED_SETTINGS:
        assert removed.name not in import_object(removed.owner, what="settings").model_fields
