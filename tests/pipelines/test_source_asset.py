"""A project asset as the source of a pipeline, and one that reads the production model."""

import shutil
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
import pytest

from sluice.assets.source_asset import asset_loader
from sluice.base.errors import SourceError
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.data.asset_rows import provide_asset, rows_of_asset
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import with_resources
from sluice.pipelines.run import RunReport
from sluice.pipelines.source_poll import SourcePoll, SourceState
from tests.pipelines.conftest import home_at, run_line
from tests.pipelines.test_foreign_project import FrameIOManager

pytestmark = pytest.mark.slow

SETTINGS = {
    "name": "shop",
    "workload": "tests.support.shop:Shop",
    "workload_settings": {
        "source": {"kind": "asset", "key": ["shop", "prices"]},
        "folds": {"num_folds": 1, "embargo_rows": 0},
    },
    "tracking": {"mode": "off"},
}
KEY = ("shop", "prices")


@dg.asset(key=list(KEY))
def prices() -> pd.DataFrame:
    area = np.random.default_rng(0).uniform(30, 180, 300)
    return pd.DataFrame({"area": area, "price": 2 * area})


@pytest.fixture
def pipeline() -> PipelineSettings:
    return PipelineSettings.parse(SETTINGS, where="test")


@pytest.fixture
def project(pipeline: PipelineSettings, tmp_path: Path) -> dg.Definitions:
    sluice_definitions = with_resources(
        build_definitions(resolve(pipeline)), home_at(tmp_path / "home")
    )
    selection = dg.AssetSelection.assets(list(KEY), ["shop", "raw_data"], ["shop", "features"])
    job = dg.define_asset_job("mixed", selection, executor_def=dg.in_process_executor)
    project_definitions = dg.Definitions(
        assets=[prices], jobs=[job], resources={"io_manager": FrameIOManager()}
    )
    return dg.Definitions.merge(sluice_definitions, project_definitions)


def test_raw_data_is_the_frame_of_the_source_asset(
    project: dg.Definitions, pipeline: PipelineSettings, tmp_path: Path
) -> None:
    home = home_at(tmp_path / "home")
    workload = resolve(pipeline).workload
    with open_instance(home) as instance:
        result = project.resolve_job_def("mixed").execute_in_process(instance=instance)
        # A schedule or a sensor reads the rows outside of a run.
        context = dg.build_schedule_context(
            instance=instance, repository_def=project.get_repository_def()
        )
        found = SourcePoll(workload).read_state(asset_loader(context))

    assert result.success
    (event,) = (
        each.step_materialization_data
        for each in result.get_asset_materialization_events()
        if each.asset_key == dg.AssetKey(["shop", "raw_data"])
    )
    assert event.materialization.metadata["dagster/row_count"].value == 300
    assert isinstance(found, SourceState)
    assert event.materialization.tags["dagster/data_version"] == found.digest
    upstream = project.get_repository_def().asset_graph.get(dg.AssetKey(["shop", "raw_data"]))
    assert upstream.parent_keys == {dg.AssetKey(KEY)}


def test_asset_source_is_refused_outside_of_dagster(
    pipeline: PipelineSettings, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="shop/prices can only be read inside Dagster") as caught:
        run_line(pipeline, home_at(tmp_path / "home"))

    assert "dg launch" in caught.value.fix
    assert (
        "shop/prices can only be read" in SourcePoll(resolve(pipeline).workload).read_state().reason
    )


def test_asset_that_returns_no_data_frame_is_refused() -> None:
    with provide_asset(KEY, 7), pytest.raises(SourceError, match=r"return a data frame .* got int"):
        rows_of_asset(KEY)
    with provide_asset(("other",), pd.DataFrame()), pytest.raises(SourceError, match="inside"):
        rows_of_asset(KEY)
    with pytest.raises(SourceError, match="inside Dagster"):
        rows_of_asset(KEY)


def test_arrow_table_is_converted() -> None:
    import pyarrow as pa

    with provide_asset(KEY, pa.table({"x": [1, 2]})):
        assert rows_of_asset(KEY)["x"].tolist() == [1, 2]


def test_project_asset_reads_the_production_version(
    green: tuple[Home, RunReport], echo: PipelineSettings, tmp_path: Path
) -> None:
    home = home_at(tmp_path / "home")
    shutil.copytree(green[0].root, home.root)
    seen = []

    @dg.asset(ins={"model": dg.AssetIn(key=["echo", "production_model"])})
    def announcement(model: dict[str, object]) -> None:
        seen.append(model["version"])

    job = dg.define_asset_job(
        "announce", dg.AssetSelection.assets(announcement), executor_def=dg.in_process_executor
    )
    project = dg.Definitions.merge(
        with_resources(build_definitions(resolve(echo)), home),
        dg.Definitions(assets=[announcement], jobs=[job]),
    )
    with open_instance(home) as instance:
        assert project.resolve_job_def("announce").execute_in_process(instance=instance).success

    assert seen == [green[1].version]
