"""Runs the controller of the active rollout, and reports transitions to Dagster."""

import os
from datetime import datetime

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.resources import SluiceState, utc_now
from sluice.assets.rollout import ROLLOUT, rollout_metadata
from sluice.base.errors import StorageError
from sluice.checks.rollout import evaluation_of_check
from sluice.pipelines.jobs import PRODUCTION_MODEL, promotion_job_name, review_job_name
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.controller import try_reconcile
from sluice.rollout_control.notifications import publish_transitions

POLL_INTERVAL_S = 5
REVIEW_EVERY_S = 600
"""Interval of reviews during a rollout [s]. There are reviews only if requests name their rows, so
that labels can be matched with the requests later."""
PROMOTE_EVERY_S = 300
"""Interval at which the promotion is requested again while the rollout awaits promotion [s]. Each
request has another run key, so that a failed run is repeated."""
FAILED_ROWS_REVIEW_EVERY_S = 86_400
"""Interval of the reviews after a rollback [s]. The rows on which the challenger failed may enter
the source days after their requests."""
MAX_FAILED_ROWS_REVIEWS = 7
"""Maximum number of reviews after a rollback, in addition to the first review, which starts
immediately."""

Events = list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]


def rollout_sensor(
    pipeline: str, jobs: list[UnresolvedAssetJobDefinition], *, approval_settings: ApprovalSettings
) -> dg.SensorDefinition:
    """Return the sensor that runs the controller; each transition becomes an asset observation.

    Args:
        pipeline: Name of the pipeline.
        jobs: Jobs that the sensor starts.
        approval_settings: Approval for which the promotion waits.
    """

    @dg.sensor(
        jobs=jobs,
        name=f"{pipeline}_rollout_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=POLL_INTERVAL_S,
        description="Reads the observations of the servers and applies the rules of the rollout: "
        "advance, wait, pause or roll back. Starts the promotion job after the last step (again "
        f"every {PROMOTE_EVERY_S // 60} minutes until the version is promoted), and the reviews of "
        "labels and failed rows. Waits for a required approval.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.SensorResult | dg.SkipReason:
        now = utc_now()
        with sluice_state.ledger() as ledger:
            last_assessment = try_reconcile(ledger, pipeline, now=now)
            rollout = ledger.rollout(pipeline)
            if rollout is None:
                return dg.SkipReason("No rollout has been started.")
            transitions = _new_transitions(ledger, rollout, context.cursor)
            page_url = ""
            if transitions:
                environ, home = os.environ, sluice_state.home
                try:
                    page_url = publish_transitions(
                        ledger, transitions, failed_rows=None, home=home, environ=environ, now=now
                    ).url
                except StorageError as error:  # a full disk must not block a promotion
                    context.log.warning(f"The rollout's page was not written: {error}")
            missing_approval = _describe_missing_approval(ledger, rollout, approval_settings)
            requests = (
                []
                if missing_approval
                else review_and_promotion_requests(pipeline, ledger, rollout, now)
            )
        if not transitions and not requests:
            status = (
                last_assessment.summary
                if last_assessment
                else f"The last rollout is {rollout.phase}."
            )
            return dg.SkipReason(missing_approval or status)
        return dg.SensorResult(
            run_requests=requests,
            asset_events=_asset_events(pipeline, transitions, page_url),
            cursor=f"{rollout.id} {rollout.revision}",
        )

    return sensor


def _new_transitions(
    ledger: RolloutLedger, rollout: Rollout, cursor: str | None
) -> list[Transition]:
    """Return the transitions that have not been reported yet."""
    rollout_id, _, revision = (cursor or "").partition(" ")
    last_reported_revision = int(revision) if rollout_id == rollout.id else -1
    return [
        t
        for t in ledger.rollout_transitions(rollout.id)
        if t.rollout.revision > last_reported_revision
    ]


def _asset_events(pipeline: str, transitions: list[Transition], page_url: str) -> Events:
    page_metadata = {"page": dg.MetadataValue.url(page_url)} if page_url else {}
    events: Events = [
        dg.AssetObservation(
            asset_key=dg.AssetKey([pipeline, ROLLOUT]),
            description=transition.summary,
            metadata={**rollout_metadata(transition), **page_metadata},
        )
        for transition in transitions
    ]
    if transitions:
        last_transition = transitions[-1]
        events.append(
            evaluation_of_check(pipeline, last_transition.rollout, last_transition.summary)
        )
    return events


def _describe_missing_approval(
    ledger: RolloutLedger, rollout: Rollout, approval_settings: ApprovalSettings
) -> str:
    """Return which approval a completed rollout waits for; "" if no approval is missing."""
    if rollout.phase != "awaiting_promotion":
        return ""
    status = ledger.approval_status(
        rollout.model,
        rollout.version,
        approval_settings=approval_settings,
        valid_at=rollout.started_at,
    )
    return f"{status.problem} {status.remedy}".strip()


def review_and_promotion_requests(
    pipeline: str, ledger: RolloutLedger, rollout: Rollout, now: datetime
) -> list[dg.RunRequest]:
    """Return the run requests of a rollout. The run key ensures that each run starts only once."""
    tags = {"sluice/rollout": rollout.id[:12], "sluice/version": str(rollout.version)}
    last_transition_at = ledger.rollout_transitions(rollout.id)[-1].at
    elapsed_s = max(0.0, (now - last_transition_at).total_seconds())
    if rollout.phase == "awaiting_promotion":
        config = {"version": rollout.version}
        return [
            dg.RunRequest(
                run_key=f"{rollout.id}:promotion {int(elapsed_s // PROMOTE_EVERY_S)}",
                job_name=promotion_job_name(pipeline),
                run_config={"ops": {f"{pipeline}__{PRODUCTION_MODEL}": {"config": config}}},
                tags=tags,
            )
        ]
    has_keyed_pairs = ledger.observations.has_keyed_pairs(rollout.id)
    if rollout.phase == "rolled_back":
        num_repeated_reviews = (
            min(int(elapsed_s // FAILED_ROWS_REVIEW_EVERY_S), MAX_FAILED_ROWS_REVIEWS)
            if has_keyed_pairs
            else 0
        )
        run_key = f"{rollout.id}:failed {num_repeated_reviews}"
    elif not rollout.is_over and has_keyed_pairs:
        run_key = f"{rollout.id}:labels {int(now.timestamp() // REVIEW_EVERY_S)}"
    else:
        return []
    return [dg.RunRequest(run_key=run_key, job_name=review_job_name(pipeline), tags=tags)]
