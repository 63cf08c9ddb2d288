"""``dg scaffold defs sluice.ModelPipeline`` in a new Dagster project, without a subprocess."""

from pathlib import Path

import click
import dagster as dg
import pytest
import yaml

import sluice
from sluice.pipelines.component import ModelPipeline
from sluice.pipelines.instance import open_instance
from sluice.pipelines.scaffolder import PipelineScaffolder, PipelineTemplate
from tests.pipelines.conftest import STAGES, home_at
from tests.sluice.scaffold.tables import write_csv

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Definitions folder of a new project with the layout of create-dagster and a unique name."""
    root = tmp_path / "project"
    module = f"scaffolded_{tmp_path.name}"
    defs = root / "src" / module / "defs"
    defs.mkdir(parents=True)
    for folder in (defs, defs.parent):
        (folder / "__init__.py").touch()
    (root / "pyproject.toml").write_text(
        f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{module}"\n'
    )
    monkeypatch.syspath_prepend(root / "src")
    monkeypatch.delenv("SLUICE_HOME", raising=False)
    return defs


def scaffold(defs: Path, name: str, **params: str) -> Path:
    folder, options = defs / name, {"scaffold_format": "yaml"}
    options |= {key: params.pop(key) for key in ("scaffold_format",) if key in params}
    folder.mkdir(parents=True, exist_ok=True)
    PipelineScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="sluice.ModelPipeline",
            target_path=folder,
            project_root=defs.parents[2],
            params=PipelineTemplate(**params),  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )
    )
    return folder


def test_component_is_an_attribute_of_the_package() -> None:
    assert sluice.ModelPipeline is ModelPipeline  # type: ignore[attr-defined]
    assert "ModelPipeline" in dir(sluice)
    with pytest.raises(AttributeError, match="no attribute 'ModelPipelines'"):
        _ = sluice.ModelPipelines  # type: ignore[attr-defined]


def test_two_scaffolded_pipelines_load_and_run_beside_each_other(project: Path) -> None:
    """Both have a module called workload."""
    first = scaffold(project, "flats", template="regression")
    second = scaffold(project, "reviews", template="text")

    assert {path.name for path in first.iterdir()} == {
        *("data.csv", "defs.yaml", "workload.py", "test_flats.py")
    }
    document = yaml.safe_load((second / "defs.yaml").read_text())
    assert document["type"] == "sluice.ModelPipeline"
    package = project.parent.name
    assert document["attributes"]["workload"] == f"{package}.defs.reviews.workload:Reviews"
    root = project.parents[2]
    definitions = dg.load_from_defs_folder(path_within_project=root)
    keys = {tuple(key.path) for key in definitions.resolve_asset_graph().get_all_asset_keys()}
    assert {(name, stage) for name in ("flats", "reviews") for stage in STAGES} <= keys
    features = [dg.AssetSelection.assets([name, "features"]) for name in ("flats", "reviews")]
    job = dg.define_asset_job(
        "both",
        (features[0] | features[1]).upstream(),
        executor_def=dg.in_process_executor,
    )
    merged = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))
    with open_instance(home_at(root / ".sluice")) as instance:
        assert merged.resolve_job_def("both").execute_in_process(instance=instance).success
    assert {path.name for path in (root / ".sluice" / "records").iterdir()} == {"flats", "reviews"}


def test_own_data_file_is_used_in_place(project: Path) -> None:
    data = project.parents[2] / "flats.csv"
    target = write_csv("numbers", data)

    folder = scaffold(project, "flats", data=str(data), target=target)

    source = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
    assert source["workload_settings"]["source"]["uri"] == "../../../../flats.csv"
    assert {path.name for path in folder.iterdir()} == {
        *("defs.yaml", "workload.py", "test_flats.py")
    }


def test_invalid_requests_are_refused(project: Path) -> None:
    for params, message in (
        ({"scaffold_format": "python"}, "a new folder with a defs.yaml"),
        ({"target": "price"}, "A target was given, 'price', but no data"),
    ):
        with pytest.raises(click.ClickException, match=message):
            scaffold(project, "flats", **params)
    with pytest.raises(click.ClickException, match="got 'Flats'"):
        scaffold(project, "Flats")
    assert {path.name for path in project.iterdir()} == {"__init__.py"}
    scaffold(project, "twice", template="regression")
    with pytest.raises(click.ClickException, match=r"exists? already"):
        scaffold(project, "twice", template="regression")


def test_outside_of_a_package_the_workload_module_is_imported_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    PipelineScaffolder().scaffold(
        dg.ScaffoldRequest(
            type_name="sluice.ModelPipeline",
            target_path=folder,
            scaffold_format="yaml",
            project_root=None,
            params=PipelineTemplate(template="regression"),
        )
    )

    document = yaml.safe_load((folder / "defs.yaml").read_text())
    assert document["attributes"]["workload"] == "workload:Elsewhere"
