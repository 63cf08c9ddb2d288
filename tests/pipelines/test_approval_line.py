"""A pipeline waits for an approval after PROMOTE, and continues once it is given (APPR-1)."""

import io
from datetime import UTC, datetime

import dagster as dg
import pytest
from rich.console import Console

from sluice.assets.resources import utc_now
from sluice.base.home import Home
from sluice.checks.approval import APPROVED
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.instance import open_instance
from sluice.pipelines.jobs import PRODUCTION_MODEL
from sluice.pipelines.promotion_sensor import next_request
from sluice.pipelines.resources import with_resources
from sluice.pipelines.run import RunReport
from sluice.pipelines.summary import print_summary
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.rollouts import RolloutLedger
from tests.pipelines.conftest import forget_promotion, ledger_of, run_line

pytestmark = pytest.mark.slow

WAITS = "echo version 1 waits for an approval, which is valid for 24 h."
COMMAND = "sluice registry approve echo 1 --reason '...'"


def execute(
    definitions: dg.Definitions, home: Home, job: str, op: str, **config: object
) -> dg.ExecuteInProcessResult:
    with open_instance(home) as instance:
        return definitions.resolve_job_def(job).execute_in_process(
            instance=instance,
            run_config={"ops": {op: {"config": config}}},
            raise_on_error=False,
        )


def read_check(home: Home) -> tuple[bool, str]:
    """Return result and description of the last approval check."""
    key = dg.AssetCheckKey(dg.AssetKey(["echo", "candidate"]), APPROVED)
    with open_instance(home) as instance:
        (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.event is not None
    evaluation = record.event.dagster_event.asset_check_evaluation_data
    assert evaluation.severity == dg.AssetCheckSeverity.WARN
    return evaluation.passed, evaluation.description or ""


def tick(pipeline: PipelineSettings, home: Home) -> dg.RunRequest | str:
    """Return the run request of the promotion sensor, or its skip message."""
    with (
        open_instance(home) as instance,
        RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as ledger,
    ):
        event = instance.get_latest_materialization_event(dg.AssetKey(["echo", "candidate"]))
        assert event is not None
        found = next_request(
            "echo",
            event,
            ledger,
            instance,
            has_rollout=False,
            gate_settings_digest=pipeline.gate_settings_digest,
            approval_settings=pipeline.approval,
            now=utc_now(),
        )
    return found if isinstance(found, dg.RunRequest) else str(found.skip_message)


@pytest.mark.exhaustive
def test_line_waits_for_an_approval_and_continues_after_it(
    echo: PipelineSettings, green: tuple[Home, RunReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, before = green
    forget_promotion(home)
    approval = ApprovalSettings(required=True, expires_h=24)
    pipeline = echo.model_copy(update={"approval": approval})
    definitions = with_resources(build_definitions(resolve(pipeline)), home)
    # The training job is not repeated: its run id is returned instead.
    monkeypatch.setattr("sluice.pipelines.run._execute_job", lambda *_, **__: before.run_id)

    report = run_line(pipeline, home)

    assert (report.verdict, report.production, report.needs_approval) == ("PROMOTE", None, True)
    assert report.gate_passed
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    print_summary(report, home, console, pipeline="echo", program=".venv/bin/sluice")
    printed = " ".join(shown.getvalue().split())
    assert f"PROMOTE, not in production yet. {WAITS}" in printed
    assert f"Run: .venv/bin/{COMMAND}" in printed
    assert f".venv/bin/{COMMAND} approve the promotion" in printed
    assert WAITS in str(tick(pipeline, home))
    early = execute(definitions, home, "echo_promotion", f"echo__{PRODUCTION_MODEL}", version=1)
    assert not early.success
    (failed,) = (event for event in early.all_events if event.is_step_failure)
    assert WAITS in failed.step_failure_data.error_display_string
    assert read_check(home) == (
        False,
        f"WAITING: {WAITS} No approval of this version is recorded. Run: {COMMAND}",
    )

    approve = {"version": 1, "actor": "ada", "reason": "reviewed"}
    assert execute(definitions, home, "echo_approval", "echo__approval", **approve).success

    passed, words = read_check(home)
    assert passed
    assert words.startswith("Approved by ada at ")
    request = tick(pipeline, home)
    assert isinstance(request, dg.RunRequest)
    assert request.job_name is not None
    promoted = execute(definitions, home, request.job_name, f"echo__{PRODUCTION_MODEL}", version=1)
    assert promoted.success
    with ledger_of(home) as ledger:
        assert [entry.action for entry in ledger.history("echo")] == [
            "register",
            "stage",
            "approve",
            "promote",
        ]
