"""Starts drift checks of new rows and samples, and one training for each persistent drift."""

from datetime import datetime, timedelta

import dagster as dg
import pandas as pd
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import RUN_KEY_TAG
from pydantic import Field, ValidationError

from sluice.assets.drift_report import DRIFT_REPORT, newest_samples, production_since
from sluice.assets.record_io_manager import read_latest_record
from sluice.assets.resources import SluiceState, utc_now
from sluice.assets.source_asset import LoadAsset, asset_loader
from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import SluiceError
from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings
from sluice.drift.monitor_state import MonitorState
from sluice.drift.pending_windows import PendingWindows, SourceIndex, find_pending_windows
from sluice.drift.reference_store import ReferenceArtifacts, last_known_label
from sluice.pipelines.active_run import describe_active_run
from sluice.pipelines.jobs import drift_job_name, training_job_name
from sluice.pipelines.requested_run import RequestedRun, find_requested_run
from sluice.pipelines.source_poll import SourcePoll, SourceUnavailable
from sluice.registry.records import Version
from sluice.registry.rollouts import RolloutLedger
from sluice.serving.deployed import deployed_members
from sluice.workloads.workload import Workload

POLL_INTERVAL_S = 300
RETRY_DELAY = timedelta(hours=1)
"""Time from the end of a failed training to its restart."""
_CHECK_KEY_PREFIX = "drift-check-"
"""Prefix of the run keys of drift checks."""
DRIFT_TAG = "sluice/drift"
"""Run tag with the id of the drift alarm that started the training."""
_SERVING_SIGNALS = frozenset({"requests", "predictions", "embedding", "latency"})
"""Signals that are tested on samples of the servers, not on rows of the source."""
_MAX_TAGGED_COLUMNS = 10
"""Maximum number of columns listed in a run tag."""


class Cursor(Record):
    """The last run requests of the sensor, stored so that no request is made twice."""

    last_check: str = Field("", description="Run key of the last drift check.")
    last_alarm: str = Field(
        "", description="Id of the last alarm for which a training was started."
    )

    @classmethod
    def read(cls, text: str | None) -> "Cursor":
        """Return the stored cursor; an empty cursor if the text is missing or invalid."""
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError:
            return cls()


def drift_sensor(
    pipeline: str,
    jobs: list[UnresolvedAssetJobDefinition],
    workload: Workload,
    settings: DriftSettings,
) -> dg.SensorDefinition:
    """Return the sensor that starts drift checks and, for persistent drift, one training."""
    source_poll = SourcePoll(workload)

    @dg.sensor(
        jobs=jobs,
        name=f"{pipeline}_drift_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=POLL_INTERVAL_S,
        description="Starts the drift job when the source or the servers have a new window of "
        "data. Starts the training job once for each persistent drift, and again after a failed "
        "run. The drift job decides whether there is drift.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.SensorResult | dg.SkipReason:
        cursor = Cursor.read(context.cursor)
        with sluice_state.ledger() as ledger:
            version = ledger.production(pipeline)
            if version is None:
                return dg.SkipReason("No version is in production.")
            monitor_state = read_latest_record(
                MonitorState, sluice_state.home.records, pipeline, DRIFT_REPORT
            )
            if monitor_state is not None and monitor_state.candidate != version.candidate:
                monitor_state = None
            active_run = describe_active_run(context.instance, training_job_name(pipeline))
            alarm = monitor_state.training if monitor_state is not None else None
            requests_and_reasons = [
                request_training(
                    pipeline,
                    monitor_state,
                    cursor,
                    active_run=active_run,
                    requested_run=find_requested_run(context.instance, {DRIFT_TAG: alarm.id})
                    if alarm
                    else None,
                    now=utc_now(),
                ),
                request_drift_check(
                    pipeline,
                    version,
                    monitor_state,
                    cursor,
                    source_poll,
                    settings,
                    workload.horizon_rows,
                    sluice_state.store,
                    ledger,
                    context.instance,
                    load_asset=asset_loader(context),
                ),
            ]
        requests = [item for item in requests_and_reasons if isinstance(item, dg.RunRequest)]
        if not requests:
            return dg.SkipReason(
                " ".join(item for item in requests_and_reasons if isinstance(item, str) and item)
            )
        return dg.SensorResult(
            run_requests=requests,
            cursor=_advance_cursor(cursor, requests, monitor_state).model_dump_json(),
        )

    return sensor


def request_training(
    pipeline: str,
    monitor_state: MonitorState | None,
    cursor: Cursor,
    *,
    active_run: str,
    requested_run: RequestedRun | None,
    now: datetime,
) -> dg.RunRequest | str:
    """Return the training request for a drift alarm, or why no training is started.

    Each alarm starts one training. A failed training is started again an hour after its end. The
    result is "" if there is no alarm.

    Args:
        pipeline: Name of the pipeline.
        monitor_state: State of the drift monitor; None before the first check.
        cursor: Last run requests of the sensor.
        active_run: Description of the training in progress; empty if no training is in progress.
        requested_run: The last run that was started for this alarm; None before the first run.
        now: Current time.
    """
    if monitor_state is None:
        return ""
    if monitor_state.training is None:
        repair = monitor_state.repair
        return f"A training would not remove the drift: {repair.reason}" if repair else ""
    alarm = monitor_state.training
    since = f"the drift since {alarm.began_at:%Y-%m-%d %H:%M}"
    if requested_run is None and alarm.id == cursor.last_alarm:
        return f"A training was started for {since}."
    if requested_run is not None and requested_run.failed_at is None:
        return f"A training was started for {since}: {requested_run}."
    if active_run:
        return f"{active_run} A training for {since} starts after it."
    if requested_run is not None and requested_run.failed_at is not None:
        retry_at = requested_run.failed_at + RETRY_DELAY
        if now < retry_at:
            return (
                f"A training was started for {since}: {requested_run}. It restarts after "
                f"{retry_at:%H:%M} UTC."
            )
    return dg.RunRequest(
        run_key=f"drift-{alarm.id}"
        if requested_run is None
        else f"drift-{alarm.id} after {requested_run.run_id}",
        job_name=training_job_name(pipeline),
        tags={
            DRIFT_TAG: alarm.id,
            "sluice/drift_in": ", ".join(alarm.signals),
            "sluice/drift_columns": ", ".join(alarm.columns[:_MAX_TAGGED_COLUMNS])
            or "none individually",
        },
    )


def request_drift_check(
    pipeline: str,
    version: Version,
    monitor_state: MonitorState | None,
    cursor: Cursor,
    source_poll: SourcePoll,
    settings: DriftSettings,
    horizon_rows: int,
    store: ArtifactStore,
    ledger: RolloutLedger,
    instance: dg.DagsterInstance,
    *,
    load_asset: LoadAsset | None = None,
) -> dg.RunRequest | str:
    """Return the request of a drift check for new rows or samples, or why none is needed."""
    source_state = source_poll.read_state(load_asset)
    if isinstance(source_state, SourceUnavailable):
        return source_state.reason
    if source_state.index.empty:
        return "The source has no rows."
    samples = newest_samples(ledger, pipeline, window_rows=settings.window_rows)
    try:
        pending_windows = find_pending_windows(
            _source_index(version, source_state.index, store, horizon_rows=horizon_rows),
            samples,
            monitor_state,
            settings,
            in_production_since=production_since(ledger, pipeline),
        )
    except SluiceError as error:
        return f"New windows cannot be determined: {error}"
    if monitor_state is not None and not pending_windows.signals:
        return (
            " ".join(pending_windows.wait_reasons)
            or "Neither the source nor a server has new data."
        )
    run_key = _run_key_of_check(
        version,
        pending_windows,
        str(source_state.index[-1]),
        samples[-1].at.isoformat() if samples else "",
    )
    if run_key == cursor.last_check:
        return _no_new_check_reason(pipeline, find_requested_run(instance, {RUN_KEY_TAG: run_key}))
    return dg.RunRequest(
        run_key=run_key,
        job_name=drift_job_name(pipeline),
        tags={
            "sluice/version": str(version.number),
            "sluice/new": ", ".join(pending_windows.signals) or "the version",
        },
    )


def _no_new_check_reason(pipeline: str, requested_run: RequestedRun | None) -> str:
    if requested_run is None:
        return "A check of the newest rows was requested; no new data since."
    if requested_run.failed_at is None:
        return f"A check of the newest rows was requested ({requested_run}); no new data since."
    return (
        f"The check of the newest rows failed ({requested_run}). The next check starts when new "
        "data arrive. To check earlier, fix the error in the run's log, and launch "
        f"{drift_job_name(pipeline)} in the UI."
    )


def _source_index(
    version: Version, index: pd.Index, store: ArtifactStore, *, horizon_rows: int
) -> SourceIndex | None:
    """Return the index of the rows with a known target; None for rows without an order in time."""
    if horizon_rows == 0:
        return None
    references = ReferenceArtifacts.of(version.lineage.artifacts)
    return SourceIndex(
        index=index[:-horizon_rows],  # the targets of the newest rows are not known yet
        known_until=last_known_label(references, deployed_members(version.lineage.members), store),
        has_losses=references is not None and references.losses is not None,
    )


def _run_key_of_check(
    version: Version, pending_windows: PendingWindows, last_row: str, last_sample_time: str
) -> str:
    """Return the run key of a check. New data change the key, so that a failed check is repeated.

    The key depends only on the data of the pending signals. If no signal is pending, as may be the
    case at the first check of a version, the key depends on the rows.
    """
    newest_data = {
        "rows": last_row
        if {"rows", "losses"} & set(pending_windows.signals) or not pending_windows.signals
        else "",
        "samples": last_sample_time if _SERVING_SIGNALS & set(pending_windows.signals) else "",
    }
    digest = digest_json([version.candidate, pending_windows.signals, newest_data])
    return f"{_CHECK_KEY_PREFIX}{digest[:16]}"


def _advance_cursor(
    cursor: Cursor, requests: list[dg.RunRequest], monitor_state: MonitorState | None
) -> Cursor:
    update: dict[str, str] = {}
    for request in requests:
        if request.run_key and request.run_key.startswith(_CHECK_KEY_PREFIX):
            update["last_check"] = request.run_key
        elif monitor_state is not None and monitor_state.training is not None:
            update["last_alarm"] = monitor_state.training.id
    return cursor.model_copy(update=update)
