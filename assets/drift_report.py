"""Asset ``drift_report``: drift of the data, the predictions and the losses in production."""

import os
from datetime import datetime

import dagster as dg
import pandas as pd

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.drift_reference import CALIBRATION_SEED
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import picture, table
from sluice.assets.record_io_manager import read_latest_record
from sluice.assets.resources import RECORDS, SluiceState, utc_now
from sluice.assets.source_asset import provide_source, source_inputs
from sluice.assets.spans import spanned
from sluice.base.cpu_count import count_cores
from sluice.base.errors import GateBlocked, SluiceError
from sluice.base.home import Home
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.data.table import load_table
from sluice.drift.monitor import MonitorRun, run_drift_monitor
from sluice.drift.monitor_inputs import MonitorInputs
from sluice.drift.monitor_page import monitor_page
from sluice.drift.monitor_state import SIGNALS, Alarm, MonitorState
from sluice.drift.plots import overview_png
from sluice.drift.reference import OnProgress, no_progress
from sluice.drift.reference_file import load_reference
from sluice.drift.reference_store import ReferenceArtifacts, store_references
from sluice.findings.user_code import wrap_user_errors
from sluice.observability.alerts import Alert, raise_alert
from sluice.registry.loading import load_members, rebuild_workload
from sluice.registry.observations import MAX_SAMPLES
from sluice.registry.records import Version
from sluice.registry.rollouts import RolloutLedger
from sluice.reports.folder import save_page
from sluice.rollout.samples import Sample
from sluice.rollout_control.controller import live_servers
from sluice.workloads.workload import Workload

DRIFT_REPORT = "drift_report"
_MAX_SAMPLE_WINDOWS = 8
"""The newest samples are read, at most as many as this number of windows contains."""


def drift_report_asset(
    pipeline: str,
    workload: Workload,
    drift: DriftSettings,
    alarm_settings: AlarmDebounceSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, DRIFT_REPORT],
        deps=[dg.AssetKey([pipeline, name]) for name in ("drift_reference", "production_model")],
        ins=source_inputs(workload),
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pandas", "parquet"},
        description="Drift of the version in production. Windows of source rows, requests, "
        "predictions, latency and losses are compared with the reference that was stored at "
        "training time; for images and texts, also the embedding of the network. Windows do not "
        "overlap. Drift in several recent windows raises an alarm.",
    )
    @spanned
    def drift_report(
        context: dg.AssetExecutionContext,
        /,
        sluice_state: dg.ResourceParam[SluiceState],
        **inputs: object,
    ) -> dg.MaterializeResult[MonitorState]:
        previous_state = read_latest_record(
            MonitorState, sluice_state.home.records, pipeline, DRIFT_REPORT
        )
        with (
            provide_source(workload, inputs),
            wrap_user_errors("load_rows of the workload"),
        ):
            raw = workload.load_rows()
        with sluice_state.ledger() as ledger:
            monitor_inputs = collect_monitor_inputs(
                pipeline,
                drift,
                alarm_settings,
                sluice_state,
                ledger,
                raw,
                on_progress=context.log.info,
            )
        run = run_drift_monitor(monitor_inputs, previous_state)
        state = run.state
        context.log.info(f"{state.verdict}: {state.reason}")
        page = save_page(
            monitor_page(state),
            f"drift/{pipeline}",
            home=sluice_state.home,
            environ=os.environ,
        )
        for alarm in state.alarms:
            for problem in send_drift_alert(state, alarm, sluice_state.home):
                context.log.warning(problem)
        return dg.MaterializeResult(
            value=state,
            metadata=_state_metadata(state) | window_metadata(run) | _page_link(page.url),
        )

    return drift_report


def reference_of_version(
    pipeline: str,
    version: Version,
    drift: DriftSettings,
    state: SluiceState,
    *,
    on_progress: OnProgress = no_progress,
) -> ReferenceArtifacts | str:
    """Return the drift references of a version, or the reason why it has none.

    The references that the training stored are returned if they have the pipeline's current drift
    settings. References that are missing or have other settings are rebuilt from the version's
    training rows. If these rows are no longer available, the stored references are returned.

    Stored references that contain neither features nor predictions are returned unchanged, because
    the training could not build these two, usually because of too few rows.
    """
    stored_references = ReferenceArtifacts.of(version.lineage.artifacts)
    if stored_references is not None and _has_current_settings(drift, stored_references, state):
        return stored_references
    features = read_latest_record(FeatureSet, state.home.records, pipeline, "features")
    if features is None or features.table.digest != version.lineage.data:
        return stored_references or (
            f"Version {version.number} has no drift reference, and its training rows are no longer "
            "available to build one. The next version will have a reference."
        )
    members = version.lineage.members
    workload, networks = load_members(version, members, state.store)
    network_by_weights = {m.weights: network for m, network in zip(members, networks, strict=True)}
    return store_references(
        workload,
        load_table(features.table, state.store),
        features.folds,
        members,
        lambda member: network_by_weights[member.weights],
        drift,
        store=state.store,
        seed=CALIBRATION_SEED,
        threads=count_cores(),
        on_progress=on_progress,
    )


def newest_samples(ledger: RolloutLedger, pipeline: str, *, window_rows: int) -> list[Sample]:
    """Return the newest samples, oldest first (see ``_MAX_SAMPLE_WINDOWS``)."""
    num_samples = min(_MAX_SAMPLE_WINDOWS * window_rows, MAX_SAMPLES)
    return ledger.observations.samples(pipeline, max_samples=num_samples)


def production_since(ledger: RolloutLedger, model: str) -> datetime:
    """Return the time at which the current version came into production.

    This is the time of the last promotion or rollback.
    """
    return [entry.at for entry in ledger.history(model) if entry.revision is not None][-1]


def send_drift_alert(state: MonitorState, alarm: Alarm, home: Home) -> tuple[str, ...]:
    """Send one alert for each drift alarm; return the reasons why it could not be sent."""
    names = ", ".join(SIGNALS[name] for name in alarm.signals)
    actions = {
        "train": "The drift sensor starts the training job. Review the candidate of that job.",
        "repair": "Check the source of the rows and the servers. Retraining would not help.",
    }
    alert = Alert(
        key=f"drift/{state.model}/{alarm.id}",
        kind="drift",
        what=f"Persistent drift in {names} of version {state.version}.",
        why=alarm.reason,
        do=actions[alarm.action],
        severity="warning",
        model=state.model,
        at=alarm.began_at,
    )
    return raise_alert(alert, home=home, environ=os.environ).problems


def collect_monitor_inputs(
    pipeline: str,
    drift: DriftSettings,
    alarm_settings: AlarmDebounceSettings,
    state: SluiceState,
    ledger: RolloutLedger,
    raw: pd.DataFrame,
    *,
    on_progress: OnProgress = no_progress,
) -> MonitorInputs:
    """Return the inputs of a monitor run for the version in production.

    Raises:
        GateBlocked: No version is in production.
        ContractError: The version's workload cannot compute features from the rows.
    """
    version = ledger.production(pipeline)
    if version is None:
        raise GateBlocked(
            f"Drift detection needs a version in production, and {pipeline} has none.",
            fix=f"Run: sluice run {pipeline}",
        )
    now = utc_now()
    workload, _ = rebuild_workload(version)
    with wrap_user_errors("compute_features of the workload"):
        frame = workload.compute_features(raw)
    return MonitorInputs(
        version=version,
        in_production_since=production_since(ledger, pipeline),
        workload=workload,
        frame=frame,
        references=reference_of_version(pipeline, version, drift, state, on_progress=on_progress),
        samples=newest_samples(ledger, pipeline, window_rows=drift.window_rows),
        is_served=bool(live_servers(ledger, pipeline, now=now)),
        settings=drift,
        alarm_settings=alarm_settings,
        store=state.store,
        save_page=lambda page, signal: (
            save_page(page(), f"drift/{pipeline}/{signal}", home=state.home, environ=os.environ).url
        ),
        now=now,
        threads=count_cores(),
    )


def _has_current_settings(
    drift: DriftSettings, references: ReferenceArtifacts, state: SluiceState
) -> bool:
    digest = references.features or references.predictions
    if digest is None:
        return True  # features and predictions are both missing
    try:
        stored_settings = load_reference(digest, state.store).settings
        return stored_settings.column_settings == drift.column_settings
    except SluiceError:  # a damaged reference is rebuilt, or else reported by the monitor
        return False


def _state_metadata(state: MonitorState) -> dict[str, dg.MetadataValue | str | int | bool]:
    rows = [
        {
            "signal": SIGNALS[signal.signal],
            "verdict": signal.verdict if signal.is_monitored else "not monitored",
            "window": f"{signal.windows[-1].first} to {signal.windows[-1].last} "
            f"({signal.windows[-1].num_rows})"
            if signal.windows
            else "-",
            "reason": signal.summary,
            "alarm": signal.alarm_state.alarm,
        }
        for signal in state.signals
    ]
    return {
        "verdict": state.verdict,
        "reason": state.reason,
        "version": state.version,
        "has new windows": state.is_new,
        "signals": table(rows),
        "alarms": table(
            [
                {
                    "since": alarm.began_at.isoformat(timespec="minutes"),
                    "action": alarm.action,
                    "reason": alarm.reason,
                }
                for alarm in state.alarms
            ]
        )
        if state.alarms
        else "none",
    }


def window_metadata(run: MonitorRun) -> dict[str, dg.MetadataValue | str | int | bool]:
    """Return the results of the newest windows as Dagster metadata, with a plot of each window."""
    metadata: dict[str, dg.MetadataValue | str | int | bool] = {}
    for signal, report in run.reports.items():
        name = SIGNALS[signal]
        metadata[f"columns: {name}"] = table(
            [
                {
                    "column": c.column,
                    "verdict": c.verdict,
                    "adjusted p": c.adjusted_p,
                    "effect": c.effect,
                    "reason": c.reason,
                }
                for c in report.columns
            ]
        )
        metadata[f"plot: {name}"] = picture(overview_png(report), f"distances of {name}")
    if run.embedding is not None:
        rows = [{"quantity": name, "value": value} for name, value in run.embedding.numbers.items()]
        metadata["embedding of the network"] = table(rows)
        metadata["plot: embedding of the network"] = picture(
            run.embedding.plot(), "embeddings of held-out rows and requests"
        )
    return metadata


def _page_link(url: str) -> dict[str, dg.MetadataValue | str | int | bool]:
    return {"full report": dg.MetadataValue.url(url)}
