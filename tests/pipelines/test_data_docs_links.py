"""Expectation checks link their Data Docs page, and do not depend on it (DATA-1)."""

import dagster as dg
import pytest

from sluice.base.errors import GateBlocked
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.instance import open_instance
from sluice.pipelines.run import RunReport
from tests.pipelines.conftest import run_line

pytestmark = pytest.mark.slow


def expectation_checks(home: Home, run_id: str) -> dict[str, dg.AssetCheckEvaluation]:
    with open_instance(home) as instance:
        records = instance.get_records_for_run(
            run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ).records
    evaluations = [r.event_log_entry.dagster_event.asset_check_evaluation_data for r in records]
    return {e.asset_key.path[-1]: e for e in evaluations if e.check_name == "expectations_pass"}


def test_each_expectation_check_links_its_page(green: tuple[Home, RunReport]) -> None:
    home, report = green

    checks = expectation_checks(home, report.run_id)

    assert set(checks) == {"raw_data", "features"}
    for asset, check in checks.items():
        url, file = check.metadata["data_docs"], check.metadata["data_docs_file"]
        assert isinstance(url, dg.UrlMetadataValue)
        assert isinstance(file, dg.PathMetadataValue)
        page_path = str(url.value).removeprefix("http://127.0.0.1:3001/")
        assert page_path.startswith(f"expectations/echo/{asset}-")
        assert str(file.value).endswith(page_path)
        assert f"Expectations of echo / {asset}" in (home.reports / page_path).read_text()


def test_page_that_cannot_be_written_does_not_change_the_check_result(
    home: Home, echo: PipelineSettings
) -> None:
    """The source lacks a column, so the run stops after these checks."""
    home.reports.parent.mkdir(parents=True)
    home.reports.write_text("in the way")

    with pytest.raises(GateBlocked, match="table_matches_schema"):
        run_line(echo.model_copy(update={"workload": "tests.support.echo:MissingColumn"}), home)

    with open_instance(home) as instance:
        (run,) = instance.get_runs()
    check = expectation_checks(home, run.run_id)["raw_data"]
    assert check.passed
    message = str(check.metadata["data_docs"].value)
    assert message.startswith("Not built: StorageError: ")
    assert "reports/expectations" in message
