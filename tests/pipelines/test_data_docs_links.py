"""DATA-1: the check in the Dagster UI links the page of what it saw, and never depends on it."""

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
    found = [r.event_log_entry.dagster_event.asset_check_evaluation_data for r in records]
    return {e.asset_key.path[-1]: e for e in found if e.check_name == "expectations_pass"}


def test_each_check_of_expectations_links_its_page(green: tuple[Home, RunReport]) -> None:
    home, report = green

    checks = expectation_checks(home, report.run_id)

    assert set(checks) == {"raw_data", "features"}
    for asset, check in checks.items():
        url, file = check.metadata["data_docs"], check.metadata["data_docs_file"]
        assert isinstance(url, dg.UrlMetadataValue)
        assert isinstance(file, dg.PathMetadataValue)
        place = str(url.value).removeprefix("http://127.0.0.1:3001/")
        assert place.startswith(f"expectations/echo/{asset}-")
        assert str(file.value).endswith(place)
        assert f"Expectations of echo / {asset}" in (home.reports / place).read_text()


def test_a_page_that_cannot_be_kept_changes_no_verdict(home: Home, echo: PipelineSettings) -> None:
    """The source has lost a column, so the run ends with these checks."""
    home.reports.parent.mkdir(parents=True)
    home.reports.write_text("in the way")

    with pytest.raises(GateBlocked, match="table_matches_schema"):
        run_line(echo.model_copy(update={"workload": "tests.support.echo:MissingColumn"}), home)

    with open_instance(home) as instance:
        (run,) = instance.get_runs()
    check = expectation_checks(home, run.run_id)["raw_data"]
    assert check.passed
    said = str(check.metadata["data_docs"].value)
    assert said.startswith("Not built: StorageError: ")
    assert "reports/expectations" in said
