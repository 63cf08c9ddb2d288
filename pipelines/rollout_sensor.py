"""Drives the rollout under way, and tells Dagster what happened to it (ROLL-2)."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.resources import State, utc_now
from assets.rollout import ROLLOUT, rollout_metadata
from checks.rollout import evaluation
from pipelines.jobs import PRODUCTION, promotion_name
from sluice.delivery.drive import try_drive
from sluice.pipeline import PipelineSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout, Transition

EVERY_S = 5


def rollout_sensor(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.SensorDefinition:
    """Look at the rollout every few seconds; each transition becomes an observation."""

    @dg.sensor(
        job=job,
        name=f"{pipeline.name}_rollout_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=EVERY_S,
        description="Reads what the servers saw and lets the rollout's rules decide: go on, wait, "
        "pause or go back. Starts the promotion job when every step held.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, state: State
    ) -> dg.SensorResult | dg.SkipReason:
        with state.ledger() as ledger:
            looked = try_drive(ledger, pipeline.name, now=utc_now())
            rollout = ledger.rollout(pipeline.name)
            if rollout is None:
                return dg.SkipReason("There was no rollout yet.")
            news = _news(ledger, rollout, context.cursor)
        if not news and rollout.phase != "held":
            said = looked.summary if looked else f"The last rollout is {rollout.phase}."
            return dg.SkipReason(said)
        return dg.SensorResult(
            run_requests=[_finish(pipeline, rollout)] if rollout.phase == "held" else [],
            asset_events=_events(pipeline.name, news),
            cursor=_cursor(rollout),
        )

    return sensor


def _news(ledger: RolloutLedger, rollout: Rollout, cursor: str | None) -> list[Transition]:
    """Return the transitions that were not told yet, whoever caused them."""
    told, _, revision = (cursor or "").partition(" ")
    after = int(revision) if told == rollout.id else -1
    return [t for t in ledger.rollout_transitions(rollout.id) if t.rollout.revision > after]


def _cursor(rollout: Rollout) -> str:
    return f"{rollout.id} {rollout.revision}"


def _events(
    name: str, news: list[Transition]
) -> list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = [
        dg.AssetObservation(
            asset_key=dg.AssetKey([name, ROLLOUT]),
            description=transition.summary,
            metadata=rollout_metadata(transition),
        )
        for transition in news
    ]
    if news:
        events.append(evaluation(name, news[-1].rollout, news[-1].summary))
    return events


def _finish(pipeline: PipelineSettings, rollout: Rollout) -> dg.RunRequest:
    config = {"version": rollout.version}
    return dg.RunRequest(
        run_key=f"{rollout.id}:held",
        job_name=promotion_name(pipeline),
        run_config={"ops": {f"{pipeline.name}__{PRODUCTION}": {"config": config}}},
        tags={"sluice/rollout": rollout.id[:12], "sluice/version": str(rollout.version)},
    )
