"""Drives the rollout under way, and tells Dagster what happened to it (ROLL-2)."""

import os
from datetime import datetime

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.resources import State, utc_now
from sluice.assets.rollout import ROLLOUT, rollout_metadata
from sluice.base.errors import StorageError
from sluice.checks.rollout import evaluation
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.jobs import PRODUCTION, promotion_name, review_name
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.aftermath import tell
from sluice.rollout_control.drive import try_drive

EVERY_S = 5
REVIEW_EVERY_S = 600
"""Labels are looked for this often while a rollout is under way whose rows have names."""
PROMOTE_EVERY_S = 300
"""A promotion whose run failed or was killed is asked for again: a run key is good for one run."""
FAILED_EVERY_S = 86_400
FAILED_LOOKS = 7
"""Rows that failed live come into the source later; so often they are looked for again."""

Events = list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]


def rollout_sensor(
    pipeline: PipelineSettings, jobs: list[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Look at the rollout every few seconds; each transition becomes an observation."""

    @dg.sensor(
        jobs=jobs,
        name=f"{pipeline.name}_rollout_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=EVERY_S,
        description="Reads what the servers saw and lets the rollout's rules decide: go on, wait, "
        "pause or go back. Starts the promotion job when every step held, again when its run came "
        "to nothing, and the review of labels and failed rows.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.SensorResult | dg.SkipReason:
        now = utc_now()
        with sluice_state.ledger() as ledger:
            looked = try_drive(ledger, pipeline.name, now=now)
            rollout = ledger.rollout(pipeline.name)
            if rollout is None:
                return dg.SkipReason("There was no rollout yet.")
            news = _news(ledger, rollout, context.cursor)
            page = ""
            if news:
                environ, home = os.environ, sluice_state.home
                try:
                    page = tell(ledger, news, failed=None, home=home, environ=environ, now=now).url
                except StorageError as error:  # a full disk must not keep production from moving
                    context.log.warning(f"The rollout's page was not written: {error}")
            requests = requests_of(pipeline, ledger, rollout, now)
        if not news and not requests:
            return dg.SkipReason(
                looked.summary if looked else f"The last rollout is {rollout.phase}."
            )
        return dg.SensorResult(
            run_requests=requests,
            asset_events=_events(pipeline.name, news, page),
            cursor=f"{rollout.id} {rollout.revision}",
        )

    return sensor


def _news(ledger: RolloutLedger, rollout: Rollout, cursor: str | None) -> list[Transition]:
    """Return the transitions that were not told yet, whoever caused them."""
    told, _, revision = (cursor or "").partition(" ")
    after = int(revision) if told == rollout.id else -1
    return [t for t in ledger.rollout_transitions(rollout.id) if t.rollout.revision > after]


def _events(name: str, news: list[Transition], page: str) -> Events:
    shown = {"page": dg.MetadataValue.url(page)} if page else {}
    events: Events = [
        dg.AssetObservation(
            asset_key=dg.AssetKey([name, ROLLOUT]),
            description=transition.summary,
            metadata={**rollout_metadata(transition), **shown},
        )
        for transition in news
    ]
    if news:
        events.append(evaluation(name, news[-1].rollout, news[-1].summary))
    return events


def requests_of(
    pipeline: PipelineSettings, ledger: RolloutLedger, rollout: Rollout, now: datetime
) -> list[dg.RunRequest]:
    """Return the runs that the rollout asks for; run keys make each happen once."""
    tags = {"sluice/rollout": rollout.id[:12], "sluice/version": str(rollout.version)}
    since = ledger.rollout_transitions(rollout.id)[-1].at
    passed_s = max(0.0, (now - since).total_seconds())
    if rollout.phase == "held":
        config = {"version": rollout.version}
        return [
            dg.RunRequest(
                run_key=f"{rollout.id}:held {int(passed_s // PROMOTE_EVERY_S)}",
                job_name=promotion_name(pipeline),
                run_config={"ops": {f"{pipeline.name}__{PRODUCTION}": {"config": config}}},
                tags=tags,
            )
        ]
    named = ledger.observations.has_keys(rollout.id)
    if rollout.phase == "rolled_back":
        looks = min(int(passed_s // FAILED_EVERY_S), FAILED_LOOKS) if named else 0
        key = f"{rollout.id}:failed {looks}"
    elif not rollout.is_over and named:
        key = f"{rollout.id}:labels {int(now.timestamp() // REVIEW_EVERY_S)}"
    else:
        return []
    return [dg.RunRequest(run_key=key, job_name=review_name(pipeline), tags=tags)]
