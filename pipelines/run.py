"""Runs a whole pipeline in this process, from raw rows to a promotion. The UI shows the run."""

import time
import uuid
from collections.abc import Mapping

import dagster as dg
from dagster._core.errors import DagsterAssetCheckFailedError, DagsterExecutionInterruptedError
from pydantic import Field

from sluice.assets.best_config import BestConfig
from sluice.assets.candidate import (
    IS_NEW_KEY,
    REASON_KEY,
    VERDICT_KEY,
    VERSION_KEY,
    WORSE_METRICS_KEY,
)
from sluice.assets.evaluation_record import Evaluation
from sluice.assets.promotion_verdict import PromotionDecision
from sluice.assets.resources import SluiceState, utc_now
from sluice.assets.source_asset import require_readable_source
from sluice.assets.spans import TRACEPARENT
from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ApprovalMissing, GateBlocked, Interrupted, SluiceError
from sluice.base.home import Home
from sluice.base.settings import Record
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import ResolvedPipeline
from sluice.metrics.directions import Direction, direction_of
from sluice.observability import spans
from sluice.pipelines.code_location import attribute_runs
from sluice.pipelines.console import RunConsole
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.executor import interruptible_pools
from sluice.pipelines.instance import close_killed_runs, open_instance
from sluice.pipelines.jobs import search_job_name, training_job_name
from sluice.pipelines.promotion_sensor import read_model_status, request_promotion
from sluice.pipelines.resources import with_resources
from sluice.pipelines.run_failures import failed_checks
from sluice.pipelines.run_process import TERMINAL_TAG, RunProcess
from sluice.registry.ledger import Ledger
from sluice.tuning.study_summary import StudySummary

QUIET_CONSOLE = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Run config that silences Dagster's logger, because ``RunConsole`` shows the events."""


class RunReport(Record):
    """Result of a run."""

    pipeline: str
    run_id: str
    verdict: str
    reason: str
    remedy: str = Field("", description="What the promotion gate advises to do next.")
    symptoms: tuple[str, ...] = Field(
        (), description="Problems of the candidate's trainings, with what to do."
    )
    worse: str = Field("", description="Names of the metrics that got worse, joined by commas.")
    version: int = Field(description="Number of the candidate's version.")
    created: bool = Field(
        description="Whether the run registered the version; False if it existed."
    )
    production: int | None = Field(description="Version in production after the run, if any.")
    promoted: bool = Field(description="Whether the run put the version into production.")
    rolls_out: bool = Field(False, description="Whether the rollout of the version is in progress.")
    waits_for: str = Field(
        "",
        description="Why neither a rollout nor a promotion was started, such as the verdict or a "
        "missing approval; else empty.",
    )
    needs_approval: bool = Field(
        False, description="Whether only a person's approval is missing, as ``waits_for`` says."
    )
    compared_with: str
    metrics: dict[str, float]
    reference_metrics: dict[str, float]
    loss_unit: str = Field("", description="Unit of the metric 'loss'.")
    metric_directions: dict[str, Direction] = Field(
        default_factory=dict, description="Direction in which a metric improves, where it is known."
    )
    stage_seconds: dict[str, float]
    wall_seconds: float
    rehearsal: str = Field("", description="Result of the rehearsed rollout; empty without one.")
    rehearsal_good: bool = Field(
        True, description="False when the rehearsal did not end as expected."
    )
    overhead_seconds: float = Field(description="Wall time outside the stages [s].")

    @property
    def in_production(self) -> bool:
        """Whether the candidate of this run is in production."""
        return self.production == self.version

    @property
    def gate_passed(self) -> bool:
        """Whether the candidate is in production or has the verdict PROMOTE."""
        return self.in_production or self.verdict == "PROMOTE"


def run_pipeline(
    pipeline: ResolvedPipeline, home: Home, console: RunConsole, *, start_s: float
) -> RunReport:
    """Run the pipeline from raw rows to a verdict.

    After the verdict PROMOTE, promote the candidate or start its rollout, unless an approval is
    missing.

    Args:
        pipeline: The pipeline.
        home: State folder.
        console: Shows stages and their progress.
        start_s: ``time.perf_counter()`` at the start of the command [s].

    Raises:
        SluiceError: A stage failed.
        GateBlocked: A blocking check failed.
    """
    name = pipeline.settings.name
    require_readable_source(pipeline.workload)
    definitions = with_resources(build_definitions(pipeline), home, console)
    with open_instance(home) as instance:
        close_killed_runs(instance)
        run_id = _execute_job(definitions, training_job_name(name), instance, console)
        event = _candidate_event(instance, name, run_id)
        with SluiceState.at(home).ledger() as ledger:
            status_before = read_model_status(ledger, name, now=utc_now())
            has_rollout = pipeline.settings.rollout is not None
            request = request_promotion(name, event, status_before, has_rollout=has_rollout)
            metadata = _metadata_of(event)
            version_number = int(str(metadata[VERSION_KEY].value))
            missing_approval = None
            if isinstance(request, dg.RunRequest):
                missing_approval = _missing_approval(ledger, pipeline.settings, version_number)
        waits_for = str(request.skip_message) if isinstance(request, dg.SkipReason) else ""
        if missing_approval is not None:
            waits_for = str(missing_approval)
        elif isinstance(request, dg.RunRequest):
            assert request.job_name is not None
            _execute_job(
                definitions,
                request.job_name,
                instance,
                console,
                run_config=request.run_config,
                tags=request.tags,
            )
        with SluiceState.at(home).ledger() as ledger:
            production = ledger.production_number(name)
            rollout = ledger.rollout(name)
    evaluation = Evaluation.model_validate_json(
        (home.records / name / "evaluation.json").read_bytes()
    )
    decision = PromotionDecision.model_validate_json(
        (home.records / name / "promotion_verdict.json").read_bytes()
    )
    is_rolling_out = (
        rollout is not None and rollout.version == version_number and not rollout.is_over
    )
    wall_s = time.perf_counter() - start_s
    return RunReport(
        pipeline=name,
        run_id=run_id,
        verdict=str(metadata[VERDICT_KEY].value),
        reason=str(metadata[REASON_KEY].value),
        remedy=decision.verdict.remedy,
        symptoms=evaluation.symptoms,
        worse=str(metadata[WORSE_METRICS_KEY].value),
        version=version_number,
        created=bool(metadata[IS_NEW_KEY].value),
        production=production,
        promoted=production == version_number and status_before.production_number != production,
        rolls_out=is_rolling_out,
        waits_for=waits_for,
        needs_approval=missing_approval is not None,
        compared_with=evaluation.reference_name,
        metrics=evaluation.candidate.metrics,
        reference_metrics=evaluation.reference.metrics,
        loss_unit=pipeline.workload.loss_unit,
        metric_directions={
            metric: direction
            for metric in evaluation.candidate.metrics
            if (direction := direction_of(metric, pipeline.workload.metric_directions))
        },
        stage_seconds=console.stage_seconds,
        wall_seconds=wall_s,
        overhead_seconds=wall_s - sum(console.stage_seconds.values()),
    )


def _missing_approval(
    ledger: Ledger, settings: PipelineSettings, version_number: int
) -> ApprovalMissing | None:
    """Return the error that names the missing approval; None if the promotion can be tried."""
    try:
        ledger.require_promotable(
            settings.name,
            version_number,
            gate_settings_digest=settings.gate_settings_digest,
            approval_settings=settings.approval,
        )
    except ApprovalMissing as missing_approval:
        return missing_approval
    except GateBlocked:  # the promotion itself raises the error and records the attempt
        return None
    return None


def search_pipeline(
    pipeline: ResolvedPipeline, home: Home, console: RunConsole
) -> tuple[BestConfig, StudySummary]:
    """Run the pipeline from raw rows through its gates to the best settings of a search.

    Args:
        pipeline: The pipeline, with a search.
        home: State folder.
        console: Shows stages and their progress.

    Raises:
        SluiceError: A stage failed.
        GateBlocked: A blocking check failed.
    """
    require_readable_source(pipeline.workload)
    definitions = with_resources(build_definitions(pipeline), home, console)
    with open_instance(home) as instance:
        close_killed_runs(instance)
        _execute_job(definitions, search_job_name(pipeline.settings.name), instance, console)
    record_path = home.records / pipeline.settings.name / "best_config.json"
    best = BestConfig.model_validate_json(record_path.read_bytes())
    assert best.study is not None  # the pipeline has a search
    return best, StudySummary.model_validate_json(ArtifactStore(home.artifacts).get(best.study))


def _execute_job(
    definitions: dg.Definitions,
    job: str,
    instance: dg.DagsterInstance,
    console: RunConsole,
    *,
    run_config: Mapping[str, object] | None = None,
    tags: Mapping[str, str] | None = None,
) -> str:
    run_id = str(uuid.uuid4())
    instance.add_event_listener(run_id, console.on_event)
    attribute_runs(instance, job)
    try:
        with spans.span("job", job=job, run=run_id) as span, interruptible_pools():
            definitions.resolve_job_def(job).execute_in_process(
                run_config=QUIET_CONSOLE | dict(run_config or {}),
                instance=instance,
                run_id=run_id,
                tags={
                    **RunProcess.current(run_id).tags,
                    TERMINAL_TAG: run_id,
                    **({TRACEPARENT: span.traceparent} if span.traceparent else {}),
                    **(tags or {}),
                },
            )
    except (DagsterAssetCheckFailedError, dg.Failure):
        raise _gate_error(instance, run_id) from None
    except (KeyboardInterrupt, DagsterExecutionInterruptedError) as error:
        if isinstance(error.__cause__, Interrupted):
            raise error.__cause__ from None
        raise Interrupted(
            "Interrupted.", fix="Start again: completed work is kept and training resumes."
        ) from None
    except Exception as error:
        known_error = _sluice_error(error)
        if known_error is None:
            raise
        raise known_error from None
    return run_id


def _gate_error(instance: dg.DagsterInstance, run_id: str) -> GateBlocked:
    """Return the error that lists the failed checks with their descriptions."""
    lines = [f"  {check}" for check in failed_checks(instance, run_id)]
    return GateBlocked(
        "\n".join(["A gate stopped the run.", *lines]),
        fix="Fix what the checks report and run again. The pages of the checks in the UI "
        "('sluice dev') show the numbers.",
    )


def _sluice_error(error: BaseException) -> SluiceError | None:
    """Return the first SluiceError in the chain of an error's causes; None if it contains none.

    The chain of an error of Dagster may be circular.
    """
    current_error: BaseException | None = error
    visited_ids: set[int] = set()
    while current_error is not None and id(current_error) not in visited_ids:
        if isinstance(current_error, SluiceError):
            return current_error
        visited_ids.add(id(current_error))
        current_error = current_error.__cause__ or current_error.__context__
    return None


def _candidate_event(instance: dg.DagsterInstance, pipeline: str, run_id: str) -> dg.EventLogEntry:
    candidate_key = dg.AssetKey([pipeline, "candidate"])
    records = instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
    ).records
    events = [record.event_log_entry for record in records]
    return next(e for e in events if e.asset_materialization.asset_key == candidate_key)  # type: ignore[union-attr]


def _metadata_of(event: dg.EventLogEntry) -> Mapping[str, dg.MetadataValue]:
    assert event.asset_materialization is not None
    return event.asset_materialization.metadata
