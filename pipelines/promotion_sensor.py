"""The promotion sensor: starts the rollout or promotion of a candidate with verdict PROMOTE."""

from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import RUN_KEY_TAG

from sluice.assets.candidate import CANDIDATE_KEY, RECEIPT_KEY, VERDICT_KEY, VERSION_KEY
from sluice.assets.resources import SluiceState, utc_now
from sluice.assets.rollout import ROLLOUT
from sluice.base.errors import ApprovalMissing, GateBlocked
from sluice.pipelines.jobs import PRODUCTION_MODEL, promotion_job_name, rollout_job_name
from sluice.pipelines.requested_run import find_requested_run
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout
from sluice.rollout_control.controller import live_servers

START_RETRY_S = 600
"""Interval at which the run key changes [s]. Dagster starts one run for a run key, so a failed run
is repeated with the next key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """Status of a model, as needed for its next promotion."""

    production_number: int | None
    """Number of the version in production; None if no version is in production."""

    rollout: Rollout | None
    """The last rollout of the model; None before the first rollout."""

    num_servers: int
    """Number of servers that serve the model now."""

    read_at: datetime
    """Time at which the status was read."""


def read_model_status(ledger: RolloutLedger, model: str, *, now: datetime) -> ModelStatus:
    """Read the status of a model."""
    return ModelStatus(
        production_number=ledger.production_number(model),
        rollout=ledger.rollout(model),
        num_servers=len(live_servers(ledger, model, now=now)),
        read_at=now,
    )


def promotion_sensor(
    pipeline: str,
    jobs: list[UnresolvedAssetJobDefinition],
    *,
    has_rollout: bool,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
) -> dg.SensorDefinition:
    """Return the sensor that starts a rollout, or a promotion, when the verdict is PROMOTE.

    Args:
        pipeline: Name of the pipeline.
        jobs: Jobs that the sensor starts.
        has_rollout: Whether the pipeline has rollout settings.
        gate_settings_digest: Digest of the settings of gate, guards and suites.
        approval_settings: Approval for which the sensor waits.
    """
    candidate_key = dg.AssetKey([pipeline, "candidate"])

    @dg.sensor(
        jobs=jobs,
        name=f"{pipeline}_promotion_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=30,
        description="Reads the verdict on the newest candidate. When it is PROMOTE, starts the "
        "rollout, or the promotion when no version is in production or no rollout is configured. "
        "Waits for an approval where one is required.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.RunRequest | dg.SkipReason:
        event = context.instance.get_latest_materialization_event(candidate_key)
        if event is None:
            return dg.SkipReason("No candidate exists yet.")
        with sluice_state.ledger() as ledger:
            return next_request(
                pipeline,
                event,
                ledger,
                context.instance,
                has_rollout=has_rollout,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                now=utc_now(),
            )

    return sensor


def next_request(
    pipeline: str,
    event: dg.EventLogEntry,
    ledger: RolloutLedger,
    instance: dg.DagsterInstance,
    *,
    has_rollout: bool,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
    now: datetime,
) -> dg.RunRequest | dg.SkipReason:
    """Return the run request for the newest candidate, or the reason to skip.

    Args:
        pipeline: Name of the pipeline.
        event: Materialization of the candidate.
        ledger: Read to verify that the evidence still allows a promotion.
        instance: Read to find a run that was already started.
        has_rollout: Whether the pipeline has rollout settings.
        gate_settings_digest: Digest of the settings of gate, guards and suites.
        approval_settings: Approval that the promotion requires.
        now: Current time.
    """
    status = read_model_status(ledger, pipeline, now=now)
    request = request_promotion(pipeline, event, status, has_rollout=has_rollout)
    if isinstance(request, dg.SkipReason):
        return request
    version = int(request.tags["sluice/version"])
    try:
        ledger.require_promotable(
            pipeline,
            version,
            gate_settings_digest=gate_settings_digest,
            approval_settings=approval_settings,
        )
    except ApprovalMissing as missing:
        return dg.SkipReason(f"The verdict on version {version} is PROMOTE. {missing}")
    except GateBlocked as blocked:
        return dg.SkipReason(
            f"The verdict on version {version} is PROMOTE, but it cannot be promoted: {blocked}"
        )
    requested_run = find_requested_run(instance, {RUN_KEY_TAG: str(request.run_key)})
    if requested_run is not None:
        return dg.SkipReason(
            f"The verdict on version {version} is PROMOTE, and {requested_run}. If that run "
            f"does not succeed, another starts after {_next_retry_at(now):%H:%M} UTC."
        )
    return request


def request_promotion(
    pipeline: str, event: dg.EventLogEntry, status: ModelStatus, *, has_rollout: bool
) -> dg.RunRequest | dg.SkipReason:
    """Return the run request for one materialization of a candidate, or the reason to skip.

    Args:
        pipeline: Name of the pipeline.
        event: Materialization of the candidate.
        status: Status of the model.
        has_rollout: Whether the pipeline has rollout settings.
    """
    materialization = event.asset_materialization
    metadata = materialization.metadata if materialization else {}
    verdict = metadata[VERDICT_KEY].value if VERDICT_KEY in metadata else "no verdict"
    if verdict != "PROMOTE":
        return dg.SkipReason(f"The verdict on the newest candidate is {verdict}.")
    version, receipt = int(str(metadata[VERSION_KEY].value)), str(metadata[RECEIPT_KEY].value)
    if version == status.production_number:
        return dg.SkipReason(f"Version {version} is in production already.")
    skips_rollout = status.production_number is None or not has_rollout
    obstacle = "" if skips_rollout else _rollout_obstacle(pipeline, version, status)
    if obstacle:
        return dg.SkipReason(obstacle)
    asset = PRODUCTION_MODEL if skips_rollout else ROLLOUT
    return dg.RunRequest(
        # The key changes with time, so that a failed run is repeated.
        run_key=f"{receipt}:{asset} {_retry_interval_index(status.read_at)}",
        job_name=promotion_job_name(pipeline) if skips_rollout else rollout_job_name(pipeline),
        run_config={"ops": {f"{pipeline}__{asset}": {"config": {"version": version}}}},
        tags={
            "sluice/candidate": str(metadata[CANDIDATE_KEY].value)[:12],
            "sluice/version": str(version),
        },
    )


def _retry_interval_index(at: datetime) -> int:
    return int(at.timestamp() // START_RETRY_S)


def _next_retry_at(at: datetime) -> datetime:
    return datetime.fromtimestamp((_retry_interval_index(at) + 1) * START_RETRY_S, UTC)


def _rollout_obstacle(model: str, version: int, status: ModelStatus) -> str:
    """Return why no rollout of a version can start now; "" if a rollout can start."""
    last_rollout = status.rollout
    if last_rollout is not None and not last_rollout.is_over:
        return (
            f"The rollout of version {last_rollout.version} is in progress ({last_rollout.phase}): "
            f"sluice rollout status {model}"
        )
    if (
        last_rollout is not None
        and last_rollout.version == version
        and last_rollout.phase == "rolled_back"
    ):
        return (
            f"Version {version} was rolled back ({last_rollout.id[:8]}) and is not retried "
            f"automatically: sluice rollout status {model}"
        )
    if not status.num_servers:
        return (
            f"The verdict on version {version} is PROMOTE, but no server answers requests for "
            f"{model}, which a rollout requires. Start a server: sluice serve {model} (for your "
            "own pipeline: sluice serve with the path of its YAML)"
        )
    return ""
