"""Run config in the launchpad is used or refused; validated in the same way as in the UI."""

import dagster as dg
import pytest
from dagster._config import validate_config_from_snap

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.resources import with_resources
from tests.pipelines.conftest import STAGES

READS_CONFIG = {"production_model": {"version": 3}}


@pytest.fixture
def job(echo: PipelineSettings, home: Home) -> dg.JobDefinition:
    definitions = with_resources(build_definitions(resolve(echo)), home)
    every_asset_job = dg.define_asset_job("every", dg.AssetSelection.key_prefixes(["echo"]))
    return dg.Definitions.merge(
        definitions, dg.Definitions(jobs=[every_asset_job])
    ).resolve_job_def("every")


def validate(job: dg.JobDefinition, ops: dict[str, object]) -> list[str]:
    """Validate with the job's snapshot only, as the webserver does."""
    required = {f"echo__{name}": {"config": config} for name, config in READS_CONFIG.items()}
    snapshot = job.get_job_snapshot()
    (mode,) = snapshot.mode_def_snaps
    result = validate_config_from_snap(
        snapshot.config_schema_snapshot, mode.root_config_key, {"ops": required | ops}
    )
    return [error.message for error in result.errors or ()]


@pytest.mark.parametrize("asset", sorted(STAGES - READS_CONFIG.keys()))
@pytest.mark.parametrize(
    "config", [{"seeds": [7, 8]}, {"training": {"learning_rate": 0.5}}, {"instead": "x"}, "x"]
)
def test_config_of_assets_without_config_is_refused_with_the_alternative(
    job: dg.JobDefinition, asset: str, config: object
) -> None:
    (message,) = validate(job, {f"echo__{asset}": {"config": config}})

    assert "edit the attributes in the pipeline's YAML" in message
    assert "'sluice run NAME_OR_FILE --set training.learning_rate=0.01'" in message
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(job, {"ops": {f"echo__{asset}": {"config": config}}})


def test_empty_config_and_the_version_to_promote_are_accepted(job: dg.JobDefinition) -> None:
    assert validate(job, {}) == []
    assert validate(job, {"echo__trained_models": {"config": {}}}) == []
    (message,) = validate(job, {"echo__production_model": {"config": {"version": 3, "seed": 1}}})
    assert "seed" in message
