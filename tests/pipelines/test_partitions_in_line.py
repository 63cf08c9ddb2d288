"""The asset ``features`` recomputes only partitions whose raw rows changed (ROWS-3)."""

import dagster as dg
import pandas as pd
import pytest

from sluice.assets.features import FeatureSet
from sluice.assets.record_io_manager import read_latest_record
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.resources import with_resources
from tests.support.partitioned import DailyOfFile, daily_rows

SETTINGS = {
    "name": "daily",
    "workload": "tests.support.partitioned:DailyOfFile",
    "workload_settings": {"folds": {"num_folds": 1, "embargo_rows": 0}},
    "tracking": {"mode": "off"},
}


@pytest.mark.slow
def test_run_with_one_changed_row_recomputes_two_partitions(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = PipelineSettings.parse(SETTINGS, where="test")
    definitions = with_resources(build_definitions(resolve(pipeline)), home)
    selection = dg.AssetSelection.assets(["daily", "raw_data"], ["daily", "features"])
    job = dg.define_asset_job("rows", selection, executor_def=dg.in_process_executor)
    project = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job]))

    def compute_features_of(rows: pd.DataFrame) -> tuple[FeatureSet, str]:
        rows.to_csv("rows.csv")
        with open_instance(home) as instance:
            result = project.resolve_job_def("rows").execute_in_process(instance=instance)
            logs = instance.all_logs(result.run_id)
        assert result.success
        record = read_latest_record(FeatureSet, home.records, "daily", "features")
        assert record is not None
        (message,) = (
            each.user_message for each in logs if "partitions computed" in each.user_message
        )
        return record, message

    rows = daily_rows()
    before, first = compute_features_of(rows)
    rows.loc["2020-06-30", "price"] += 1.0
    after, second = compute_features_of(rows)

    months = len(before.partitions)
    assert first.startswith(f"{months} of {months} partitions computed")
    assert second.startswith(f"2 of {months} partitions computed")
    assert before.table.digest != after.table.digest
    assert after.table.num_rows == len(DailyOfFile().compute_features(rows))
