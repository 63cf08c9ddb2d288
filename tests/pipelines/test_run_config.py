"""Run config cannot configure a resource or read an environment variable."""

import dagster as dg
import pytest
from dagster._config import ConfigType
from dagster._config.source import BoolSourceType, IntSourceType, StringSourceType

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.resources import resources, with_resources, without_launchpad_config

READS_VARIABLES = (StringSourceType, IntSourceType, BoolSourceType)
INNER_TYPES = ("inner_type", "scalar_type", "non_scalar_type", "value_type")


@pytest.fixture
def definitions(echo: PipelineSettings, home: Home) -> dg.Definitions:
    return without_launchpad_config(with_resources(build_definitions(resolve(echo)), home), home)


def find_env_sources(kind: ConfigType, path: str) -> list[str]:
    """Return the paths of a config schema whose value may come from an environment variable."""
    if isinstance(kind, READS_VARIABLES):
        return [path]
    fields = getattr(kind, "fields", None) or {}
    inner = [(getattr(kind, name), path) for name in INNER_TYPES if hasattr(kind, name)]
    inner += [(field.config_type, f"{path}.{name}") for name, field in fields.items()]
    return [found for part, at in inner for found in find_env_sources(part, at)]


def test_find_env_sources_finds_a_string_source() -> None:
    @dg.op(config_schema={"a": [{"b": dg.StringSource}]})
    def reads() -> None: ...

    job = dg.GraphDefinition("j", node_defs=[reads]).to_job()

    assert find_env_sources(job.run_config_schema.config_type, "j") == ["j.ops.reads.config.a.b"]


def test_no_config_value_of_a_job_may_come_from_an_environment_variable(
    definitions: dg.Definitions,
) -> None:
    jobs = definitions.get_repository_def().get_all_jobs()

    assert "echo_promotion" in {job.name for job in jobs}
    found = [
        p for job in jobs for p in find_env_sources(job.run_config_schema.config_type, job.name)
    ]
    assert found == []


@pytest.mark.parametrize(
    "config",
    [
        {"registry_url": "postgresql://evil.example/x"},
        {"root": {"env": "A_SECRET"}},
        {"registry_key": "/etc/passwd"},
        {"base_dir": {"env": "A_SECRET"}},
        {"instead": "x"},
        "x",
    ],
)
def test_resource_in_run_config_is_refused(
    definitions: dg.Definitions,
    home: Home,
    config: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    job = definitions.resolve_job_def("echo_training")
    for name in {*resources(home), "io_manager"}:
        with pytest.raises(dg.DagsterInvalidConfigError) as refused:
            dg.validate_run_config(job, {"resources": {name: {"config": config}}})
        assert "hunter2" not in str(refused.value)
        assert "SLUICE_REGISTRY_URL" in str(refused.value)


def test_promotion_version_must_be_a_literal_integer(
    definitions: dg.Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hunter2")
    job = definitions.resolve_job_def("echo_promotion")

    def run_config(version: object) -> dict[str, object]:
        return {"ops": {"echo__production_model": {"config": {"version": version}}}}

    dg.validate_run_config(job, run_config(3))
    with pytest.raises(dg.DagsterInvalidConfigError) as refused:
        dg.validate_run_config(job, run_config({"env": "A_SECRET"}))
    assert "hunter2" not in str(refused.value)
