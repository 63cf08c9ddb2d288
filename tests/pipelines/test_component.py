"""Definitions that the component builds from YAML, and the runs its promotion sensor requests."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import jsonschema
import pytest
import yaml

from sluice.config.pipeline import (
    PipelineSettings,
    defs_folder,
    find_pipeline,
    known_pipelines,
)
from sluice.config.pipeline_file import COMPONENT
from sluice.config.resolved import resolve
from sluice.pipelines.component import ModelPipeline
from sluice.pipelines.definitions import defs
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.promotion_sensor import ModelStatus, request_promotion
from sluice.pipelines.resources import with_resources
from tests.pipelines.conftest import ECHO, ROLLOUT, STAGES, home_at


@pytest.fixture(scope="module")
def shipped() -> dg.Definitions:
    return defs()


def asset_names(definitions: dg.Definitions, pipeline: str) -> set[str]:
    keys = definitions.resolve_all_asset_keys()
    return {key.path[1] for key in keys if key.path[0] == pipeline}


def test_every_shipped_pipeline_loads_with_all_assets_jobs_and_sensors(
    shipped: dg.Definitions,
) -> None:
    assert "sp500_volatility" in known_pipelines(defs_folder())
    for name in known_pipelines(defs_folder()):
        has_rollout = find_pipeline(name, defs_folder()).rollout is not None
        assert asset_names(shipped, name) == STAGES | (ROLLOUT if has_rollout else set())
        assert shipped.resolve_job_def(f"{name}_search")
        assert shipped.resolve_job_def(f"{name}_training")
        assert shipped.resolve_job_def(f"{name}_promotion")
        assert shipped.resolve_schedule_def(f"{name}_retrain_schedule")
        assert shipped.resolve_job_def(f"{name}_registry_verification")
        assert shipped.resolve_schedule_def(f"{name}_registry_verification_schedule")
        assert shipped.resolve_sensor_def(f"{name}_promotion_sensor")
        assert shipped.resolve_job_def(f"{name}_drift")
        assert shipped.resolve_sensor_def(f"{name}_drift_sensor")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new project with one pipeline file and no Python of its own."""
    module = f"project_{tmp_path.name}"  # Python imports a name only once
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{module}"\n'
    )
    folder = tmp_path / module / "defs" / "echo"
    folder.mkdir(parents=True)
    (tmp_path / module / "__init__.py").touch()
    (tmp_path / module / "defs" / "__init__.py").touch()
    shutil.copy(ECHO, folder / "defs.yaml")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_pipeline_needs_only_a_yaml_file(project: Path) -> None:
    loaded = dg.load_from_defs_folder(path_within_project=project)

    assert asset_names(loaded, "echo") == STAGES


def test_unknown_key_in_yaml_fails_the_loading(project: Path) -> None:
    (file,) = project.rglob("defs.yaml")
    file.write_text(file.read_text().replace("architecture", "architektur"))

    with pytest.raises(Exception, match="echo") as caught:
        dg.load_from_defs_folder(path_within_project=project)

    assert "architektur" in str(caught.value.__cause__)


def test_pipeline_based_on_another_loads_beside_it(project: Path) -> None:
    """The schema that `dg check yaml` uses accepts both forms of the file (CONF-1)."""
    (file,) = project.rglob("defs.yaml")
    other = file.parent.parent / "loud" / "defs.yaml"
    other.parent.mkdir()
    attributes = {"based_on": "../echo/defs.yaml", "name": "loud", "model": {"hidden": 8}}
    other.write_text(yaml.safe_dump({"type": COMPONENT, "attributes": attributes}))

    loaded = dg.load_from_defs_folder(path_within_project=project)

    assert asset_names(loaded, "echo") == asset_names(loaded, "loud") == STAGES
    schema = ModelPipeline.get_model_cls().model_json_schema()
    for path in (file, other):
        jsonschema.validate(yaml.safe_load(path.read_text())["attributes"], schema)
    for wrong in ({"based_on": "a.yaml"}, {"name": "a"}, attributes | {"modle": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_training_job_excludes_production_model_and_drift_report(
    echo: PipelineSettings, tmp_path: Path
) -> None:
    definitions = with_resources(build_definitions(resolve(echo)), home_at(tmp_path / "home"))
    job = definitions.resolve_job_def("echo_training")

    assert {key.path[1] for key in job.asset_layer.selected_asset_keys} == STAGES - {
        "production_model",
        "drift_report",
    }


def test_only_verdict_suite_rollout_and_drift_checks_do_not_block(shipped: dg.Definitions) -> None:
    specs = [spec for check in shipped.asset_checks or () for spec in check.check_specs]

    not_blocking = {s.name for s in specs if not s.blocking}
    assert not_blocking == {
        "candidate_is_better",
        "regression_suites_pass",
        "challenger_is_promoted",
        "no_drift",
    }
    names = known_pipelines(defs_folder())
    roll_out = [n for n in names if find_pipeline(n, defs_folder()).rollout is not None]
    assert len(specs) == 35 * len(names) + len(roll_out)


def test_every_asset_has_the_group_of_its_pipeline_owner_kind_and_description(
    shipped: dg.Definitions,
) -> None:
    for spec in shipped.resolve_all_asset_specs():
        assert spec.group_name == spec.key.path[0], spec.key
        assert spec.owners, spec.key
        assert spec.kinds, spec.key
        assert len(spec.description or "") > 40, spec.key


def test_pipelines_of_the_environment_variable_replace_the_shipped_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(ECHO))
    loaded = defs()

    assert asset_names(loaded, "echo") == STAGES
    assert {key.path[0] for key in loaded.resolve_all_asset_keys()} == {"echo"}


def make_candidate_event(verdict: str, version: int = 3) -> dg.EventLogEntry:
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.AssetKey(["echo", "candidate"])
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                key,
                metadata={
                    "verdict": verdict,
                    "candidate": "c" * 64,
                    "receipt": "r" * 64,
                    "version": version,
                },
            )
        )
        event = instance.get_latest_materialization_event(key)
    assert event is not None
    return event


def make_status(production: int | None) -> ModelStatus:
    return ModelStatus(
        production_number=production,
        rollout=None,
        num_servers=0,
        read_at=datetime(2025, 3, 14, tzinfo=UTC),
    )


def test_promote_verdict_requests_the_promotion_of_its_version() -> None:
    request = request_promotion(
        "echo", make_candidate_event("PROMOTE"), make_status(1), has_rollout=False
    )

    assert isinstance(request, dg.RunRequest)
    assert str(request.run_key).startswith("r" * 64 + ":production_model ")
    assert request.run_config == {"ops": {"echo__production_model": {"config": {"version": 3}}}}


@pytest.mark.parametrize("verdict", ["REJECT", "EQUIVALENT", "INCONCLUSIVE", "promote", ""])
def test_other_verdicts_request_no_promotion(verdict: str) -> None:
    request = request_promotion(
        "echo", make_candidate_event(verdict), make_status(1), has_rollout=False
    )

    assert isinstance(request, dg.SkipReason)


def test_version_in_production_is_not_requested_again() -> None:
    request = request_promotion(
        "echo", make_candidate_event("PROMOTE"), make_status(3), has_rollout=False
    )

    assert isinstance(request, dg.SkipReason)
    assert "in production already" in str(request.skip_message)
