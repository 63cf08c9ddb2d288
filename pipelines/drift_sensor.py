"""From new rows to a look for drift, and from drift that stays to one training (ROLL-3)."""

from datetime import datetime, timedelta

import dagster as dg
import pandas as pd
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import RUN_KEY_TAG
from pydantic import Field, ValidationError

from sluice.assets.drift_report import DRIFT_REPORT, newest_samples, production_since
from sluice.assets.records import newest_record
from sluice.assets.resources import State, utc_now
from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import SluiceError
from sluice.base.settings import Record
from sluice.config.pipeline import PipelineSettings
from sluice.drift.held_out import KeptReference, known_until
from sluice.drift.news import Labels, News, what_is_new
from sluice.drift.watch import DriftWatch
from sluice.pipelines.asked_run import AskedRun, asked_run
from sluice.pipelines.jobs import drift_name, training_name
from sluice.pipelines.source_look import NoAnswer, SourceLook
from sluice.pipelines.under_way import under_way
from sluice.registry.records import Version
from sluice.registry.rollouts import RolloutLedger
from sluice.serving.deployed import deployed_members

EVERY_S = 300
TRAIN_AGAIN = timedelta(hours=1)
"""A training that failed is started again so long after its end."""
DRIFT_TAG = "sluice/drift"
"""Run tag: id of the drift that asked for the training."""
_TOLD = 10
"""Columns named in a tag."""


class Cursor(Record):
    """What was asked for last, so that nothing is asked for twice."""

    looked_for: str = Field("", description="Run key of the last look.")
    trained_for: str = Field("", description="Id of the last drift that training was started for.")

    @classmethod
    def read(cls, text: str | None) -> "Cursor":
        """Return the cursor; a new one when there is none, or one of another form."""
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError:
            return cls()


def drift_sensor(
    pipeline: PipelineSettings, jobs: list[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Start a look when a window is new, and one training when drift stays."""
    source = SourceLook(pipeline)

    @dg.sensor(
        jobs=jobs,
        name=f"{pipeline.name}_drift_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=EVERY_S,
        description="Judges nothing: starts a look for drift when the source or the servers have "
        "a window that was not judged yet, and the training job once for each drift that stays.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.SensorResult | dg.SkipReason:
        cursor = Cursor.read(context.cursor)
        with sluice_state.ledger() as ledger:
            version = ledger.production(pipeline.name)
            if version is None:
                return dg.SkipReason("Nothing is in production, so there is no drift of it.")
            watch = newest_record(
                DriftWatch, sluice_state.home.records, pipeline.name, DRIFT_REPORT
            )
            if watch is not None and watch.candidate != version.candidate:
                watch = None
            busy = under_way(context.instance, training_name(pipeline))
            drift = watch.training if watch is not None else None
            answers = [
                request_training(
                    pipeline,
                    watch,
                    cursor,
                    busy=busy,
                    asked=asked_run(context.instance, {DRIFT_TAG: drift.id}) if drift else None,
                    now=utc_now(),
                ),
                request_look(
                    pipeline,
                    version,
                    watch,
                    cursor,
                    source,
                    sluice_state.store,
                    ledger,
                    context.instance,
                ),
            ]
        requests = [found for found in answers if isinstance(found, dg.RunRequest)]
        if not requests:
            return dg.SkipReason(" ".join(said for said in answers if isinstance(said, str)))
        return dg.SensorResult(
            run_requests=requests, cursor=_moved(cursor, requests, watch).model_dump_json()
        )

    return sensor


def request_training(
    pipeline: PipelineSettings,
    watch: DriftWatch | None,
    cursor: Cursor,
    *,
    busy: str,
    asked: AskedRun | None,
    now: datetime,
) -> dg.RunRequest | str:
    """Return the training that drift asks for, or why none; one drift asks for one.

    One that failed is asked for again, an hour after its end.

    Args:
        pipeline: Whose production drifts.
        watch: What was found; None before the first look.
        cursor: What was asked for already.
        busy: The training under way, which a second one waits for; "" for none.
        asked: What became of the last training that this drift asked for.
        now: Present time.
    """
    if watch is None:
        return ""
    if watch.training is None:
        cause = watch.repair
        return f"Training would not mend what stays: {cause.reason}" if cause else ""
    drift = watch.training
    since = f"the drift since {drift.began_at:%Y-%m-%d %H:%M}"
    if asked is None and drift.id == cursor.trained_for:
        return f"For {since} training was started."
    if asked is not None and asked.failed_at is None:
        return f"For {since} training was started: {asked}."
    if busy:
        return f"{busy} For {since} it is started after."
    if asked is not None and asked.failed_at is not None:
        again = asked.failed_at + TRAIN_AGAIN
        if now < again:
            return f"For {since} training was started: {asked}, again after {again:%H:%M} UTC."
    return dg.RunRequest(
        run_key=f"drift-{drift.id}" if asked is None else f"drift-{drift.id} after {asked.run_id}",
        job_name=training_name(pipeline),
        tags={
            DRIFT_TAG: drift.id,
            "sluice/drift_in": ", ".join(drift.subjects),
            "sluice/drift_columns": ", ".join(drift.columns[:_TOLD]) or "none by itself",
        },
    )


def request_look(
    pipeline: PipelineSettings,
    version: Version,
    watch: DriftWatch | None,
    cursor: Cursor,
    source: SourceLook,
    store: ArtifactStore,
    ledger: RolloutLedger,
    instance: dg.DagsterInstance,
) -> dg.RunRequest | str:
    """Return the look that new rows or samples ask for, or why none."""
    answer = source.ask()
    if isinstance(answer, NoAnswer):
        return answer.reason
    if answer.index.empty:
        return "The source holds no rows, so there is nothing to look at."
    samples = newest_samples(ledger, pipeline)
    try:
        news = what_is_new(
            _labels(pipeline, version, answer.index, store),
            samples,
            watch,
            pipeline.drift_settings,
            in_production_since=production_since(ledger, pipeline.name),
        )
    except SluiceError as error:
        return f"What is new cannot be told: {error}"
    if watch is not None and not news.subjects:
        return " ".join(news.waits) or "Neither the source nor a server tells of anything new."
    key = _key(version, news, str(answer.index[-1]), samples[-1].at.isoformat() if samples else "")
    if key == cursor.looked_for:
        return _became_of_look(pipeline, asked_run(instance, {RUN_KEY_TAG: key}))
    return dg.RunRequest(
        run_key=key,
        job_name=drift_name(pipeline),
        tags={
            "sluice/version": str(version.number),
            "sluice/new": ", ".join(news.subjects) or "the version",
        },
    )


def _became_of_look(pipeline: PipelineSettings, asked: AskedRun | None) -> str:
    if asked is None:
        return "A look at the newest rows was asked for; nothing came since."
    if asked.failed_at is None:
        return f"A look at the newest rows was asked for, {asked}; nothing came since."
    return (
        f"The look at the newest rows failed ({asked}), so what they say is not known. Another is "
        "started when something comes that it did not see; or mend what the run's log names and "
        f"launch {drift_name(pipeline)} in the UI."
    )


def _labels(
    pipeline: PipelineSettings, version: Version, index: pd.Index, store: ArtifactStore
) -> Labels | None:
    horizon = pipeline.loaded_workload.horizon_rows
    if horizon == 0:
        return None
    kept = KeptReference.of(version.lineage.artifacts)
    return Labels(
        index=index[:-horizon],  # the newest rows have no target yet
        known_until=known_until(kept, deployed_members(version.lineage.members), store),
        has_losses=kept is not None and kept.losses is not None,
    )


def _key(version: Version, news: News, row: str, sample: str) -> str:
    """A look that failed is started again when something came that it did not see."""
    seen = {
        "rows": row if {"rows", "losses"} & set(news.subjects) or not news.subjects else "",
        "samples": sample if {"requests", "latency"} & set(news.subjects) else "",
    }
    return f"look-{digest_json([version.candidate, news.subjects, seen])[:16]}"


def _moved(cursor: Cursor, requests: list[dg.RunRequest], watch: DriftWatch | None) -> Cursor:
    update: dict[str, str] = {}
    for request in requests:
        if request.run_key and request.run_key.startswith("look-"):
            update["looked_for"] = request.run_key
        elif watch is not None and watch.training is not None:
            update["trained_for"] = watch.training.id
    return cursor.model_copy(update=update)
