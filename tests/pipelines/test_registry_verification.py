"""The scheduled registry verification reports findings as a failed run and a failed check."""

import dagster as dg

from sluice.base.artifacts import ArtifactStore
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.pipeline_metrics import metrics_reader
from sluice.pipelines.resources import with_resources
from sluice.registry.database import Database
from sluice.registry.rollouts import RolloutLedger
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain


def build_echo_definitions(echo: PipelineSettings, home: Home) -> dg.Definitions:
    return with_resources(
        build_definitions(resolve(echo.model_copy(update={"name": MODEL, "drift": None}))), home
    )


def verify(definitions: dg.Definitions) -> tuple[bool, dg.AssetCheckEvaluation]:
    result = definitions.resolve_job_def(f"{MODEL}_registry_verification").execute_in_process(
        raise_on_error=False
    )
    (check,) = [
        event.asset_check_evaluation_data
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    return result.success, check


def test_registry_finding_fails_the_scheduled_run_and_its_check(
    echo: PipelineSettings, home: Home
) -> None:
    definitions = build_echo_definitions(echo, home)
    without_versions = verify(definitions)
    assert without_versions[0]
    assert not without_versions[1].passed
    assert "INCONCLUSIVE" in str(without_versions[1].description)

    with RolloutLedger.open(home.registry_url, clock=Clock()) as ledger:
        promote_chain(ledger, ArtifactStore(home.artifacts), 2)
    success, check = verify(definitions)
    assert (success, check.passed, check.description) == (True, True, "No findings.")
    findings = f'sluice_registry_findings{{model="{MODEL}"}}'
    assert f"{findings} 0.0" in metrics_reader(home)().decode()

    database = Database.open(home.registry_url, create=False)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE sluice_pointers SET version = 1")
    database.close()

    success, check = verify(definitions)
    assert (success, check.passed) == (False, False)
    assert "the pointer is at version 1 after 2 moves, but the history ends with version 2" in str(
        check.description
    )
    assert "sluice registry verify" in str(check.description)
    assert check.asset_key == dg.AssetKey([MODEL, "production_model"])
    metrics = metrics_reader(home)().decode()
    assert f"{findings} 0.0" not in metrics
    assert findings in metrics


def test_verification_runs_daily_and_only_in_its_own_job(
    echo: PipelineSettings, home: Home
) -> None:
    definitions = build_echo_definitions(echo, home)
    schedule = definitions.resolve_schedule_def(f"{MODEL}_registry_verification_schedule")

    assert schedule.cron_schedule == "30 4 * * *"
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    # Verification reads every artifact, so it has its own job.
    for job in ("training", "promotion"):
        names = {node.name for node in definitions.resolve_job_def(f"{MODEL}_{job}").nodes}
        assert f"{MODEL}__registry_check" not in names
