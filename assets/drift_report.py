"""Has anything moved since the model in production learned? Judged window by window (ROLL-3)."""

import os
from datetime import datetime

import dagster as dg
import pandas as pd

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.drift_reference import SEED
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import picture, table
from sluice.assets.records import newest_record
from sluice.assets.resources import RECORDS, State, utc_now
from sluice.assets.traced import traced
from sluice.base.cpu_count import count_cores
from sluice.base.errors import GateBlocked, SluiceError
from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import load_table
from sluice.drift.held_out import KeptReference, keep_reference
from sluice.drift.plots import overview_png
from sluice.drift.reference import OnProgress, no_progress
from sluice.drift.reference_file import load_reference
from sluice.drift.watch import SUBJECTS, DriftWatch, Episode
from sluice.drift.watch_page import watch_page
from sluice.drift.watching import Look, Seen, look_for_drift
from sluice.findings.user_code import users_code
from sluice.observability.alerts import Alert, raise_alert
from sluice.registry.loading import load_members, rebuild
from sluice.registry.observations import KEPT_SAMPLES
from sluice.registry.records import Version
from sluice.registry.rollouts import RolloutLedger
from sluice.reports.folder import save_page
from sluice.rollout.samples import Sample
from sluice.rollout_control.drive import live_servers

DRIFT_REPORT = "drift_report"
_WINDOWS_READ = 8
"""So many windows of the newest samples are read."""


def drift_report_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, DRIFT_REPORT],
        deps=[
            dg.AssetKey([pipeline.name, name]) for name in ("drift_reference", "production_model")
        ],
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=f"{pipeline.name}_drift",
        kinds={"pandas", "parquet"},
        owners=list(pipeline.owners),
        description="New rows of the source, rows that clients ask about, answers, latency and "
        "losses of the version in production, each against what that version learned from or was "
        "accepted with. Windows share no row; drift in several of them raises an alarm.",
    )
    @traced
    def drift_report(
        context: dg.AssetExecutionContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.MaterializeResult[DriftWatch]:
        before = newest_record(DriftWatch, sluice_state.home.records, pipeline.name, DRIFT_REPORT)
        look = look_at_production(pipeline, sluice_state, before, on_progress=context.log.info)
        watch = look.watch
        context.log.info(f"{watch.verdict}: {watch.reason}")
        page = save_page(
            watch_page(watch), f"drift/{pipeline.name}", home=sluice_state.home, environ=os.environ
        )
        for episode in watch.episodes:
            for problem in alert_of(watch, episode, sluice_state.home):
                context.log.warning(problem)
        return dg.MaterializeResult(
            value=watch, metadata=_metadata(watch) | _columns(look) | _link(page.url)
        )

    return drift_report


def look_at_production(
    pipeline: PipelineSettings,
    state: State,
    before: DriftWatch | None,
    *,
    on_progress: OnProgress = no_progress,
) -> Look:
    """Judge what is new of the version in production, after what was known ``before``.

    Raises:
        GateBlocked: Nothing is in production.
        SourceError: The source cannot be read.
    """
    with users_code("load_rows of the workload"):
        raw = pipeline.loaded_workload.load_rows()
    with state.ledger() as ledger:
        seen = what_is_seen(pipeline, state, ledger, raw, on_progress=on_progress)
    return look_for_drift(seen, before)


def kept_reference(
    pipeline: PipelineSettings,
    version: Version,
    state: State,
    *,
    on_progress: OnProgress = no_progress,
) -> KeptReference | str:
    """Return what drift of a version is judged against, or why there is nothing.

    It was kept when the version was trained. When that is missing, or the pipeline's drift settings
    have changed since, it is made again from the version's own rows, if these are still at hand;
    else what was kept counts, with the settings of then.
    """
    kept = KeptReference.of(version.lineage.artifacts)
    if kept is not None and _has_settings_of(pipeline, kept, state):
        return kept
    features = newest_record(FeatureSet, state.home.records, pipeline.name, "features")
    if features is None or features.table.digest != version.lineage.data:
        return kept or (
            f"Version {version.number} was made without a drift reference, and the rows it learned "
            "from are no longer at hand: the next version will have one."
        )
    members = version.lineage.members
    workload, networks = load_members(version, members, state.store)
    by_weights = {m.weights: network for m, network in zip(members, networks, strict=True)}
    return keep_reference(
        workload,
        load_table(features.table, state.store),
        features.folds,
        members,
        lambda member: by_weights[member.weights],
        pipeline.drift_settings,
        store=state.store,
        seed=SEED,
        threads=count_cores(),
        on_progress=on_progress,
    )


def newest_samples(ledger: RolloutLedger, pipeline: PipelineSettings) -> list[Sample]:
    """Return what servers sampled lately, oldest first: so many windows of it as are looked at."""
    newest = min(_WINDOWS_READ * pipeline.drift_settings.window_rows, KEPT_SAMPLES)
    return ledger.observations.samples(pipeline.name, newest=newest)


def production_since(ledger: RolloutLedger, model: str) -> datetime:
    """Return when what is in production got there."""
    return [entry.at for entry in ledger.history(model) if entry.revision is not None][-1]


def alert_of(watch: DriftWatch, episode: Episode, home: Home) -> tuple[str, ...]:
    """Tell people that drift stays, once for an episode; return what went wrong with that."""
    about = ", ".join(SUBJECTS[name] for name in episode.subjects)
    acts = {
        "train": "The training job is started for it; look at the candidate it makes.",
        "repair": "Look at what delivers the rows, and at the servers: training would not help.",
    }
    alert = Alert(
        key=f"drift/{watch.model}/{episode.id}",
        kind="drift",
        what=f"Drift stays in {about} of version {watch.version}.",
        why=episode.reason,
        do=acts[episode.cure],
        severity="warning",
        model=watch.model,
        at=episode.began_at,
    )
    return raise_alert(alert, home=home, environ=os.environ).problems


def what_is_seen(
    pipeline: PipelineSettings,
    state: State,
    ledger: RolloutLedger,
    raw: pd.DataFrame,
    *,
    on_progress: OnProgress = no_progress,
) -> Seen:
    """Return what there is to judge of the version in production.

    Raises:
        GateBlocked: Nothing is in production.
        ContractError: The version's own workload makes no features of the rows.
    """
    version = ledger.production(pipeline.name)
    if version is None:
        raise GateBlocked(
            f"Drift is judged of a version in production, and {pipeline.name} has none.",
            fix=f"Run: sluice run {pipeline.name}",
        )
    now = utc_now()
    workload, _ = rebuild(version)
    with users_code("compute_features of the workload"):
        frame = workload.compute_features(raw)
    return Seen(
        version=version,
        in_production_since=production_since(ledger, pipeline.name),
        workload=workload,
        frame=frame,
        kept=kept_reference(pipeline, version, state, on_progress=on_progress),
        samples=newest_samples(ledger, pipeline),
        is_served=bool(live_servers(ledger, pipeline.name, now=now)),
        settings=pipeline.drift_settings,
        alarm=pipeline.drift_alarm,
        store=state.store,
        save=lambda page, subject: (
            save_page(
                page(), f"drift/{pipeline.name}/{subject}", home=state.home, environ=os.environ
            ).url
        ),
        now=now,
        threads=count_cores(),
    )


def _has_settings_of(pipeline: PipelineSettings, kept: KeptReference, state: State) -> bool:
    digest = kept.features or kept.predictions
    if digest is None:
        return True  # it could not be made; trying again would end the same
    try:
        return load_reference(digest, state.store).settings == pipeline.drift
    except SluiceError:  # damaged: make it again if the rows are there, else the look says so
        return False


def _metadata(watch: DriftWatch) -> dict[str, dg.MetadataValue | str | int | bool]:
    rows = [
        {
            "what": SUBJECTS[found.subject],
            "verdict": found.verdict if found.is_watched else "not watched",
            "window": f"{found.judgements[-1].first} to {found.judgements[-1].last} "
            f"({found.judgements[-1].num_rows})"
            if found.judgements
            else "-",
            "why": found.said,
            "alarm": found.persistence.alarm,
        }
        for found in watch.subjects
    ]
    return {
        "verdict": watch.verdict,
        "why": watch.reason,
        "version": watch.version,
        "anything new": watch.is_new,
        "subjects": table(rows),
        "drift that stays": table(
            [
                {"since": e.began_at.isoformat(timespec="minutes"), "cure": e.cure, "why": e.reason}
                for e in watch.episodes
            ]
        )
        if watch.episodes
        else "none",
    }


def _columns(look: Look) -> dict[str, dg.MetadataValue | str | int | bool]:
    """Return the newest windows column by column, and a picture of them."""
    shown: dict[str, dg.MetadataValue | str | int | bool] = {}
    for subject, report in look.reports.items():
        name = SUBJECTS[subject]
        shown[f"columns: {name}"] = table(
            [
                {
                    "column": c.column,
                    "verdict": c.verdict,
                    "adjusted p": c.adjusted_p,
                    "effect": c.effect,
                    "why": c.reason,
                }
                for c in report.columns
            ]
        )
        shown[f"picture: {name}"] = picture(overview_png(report), f"distances in {name}")
    return shown


def _link(url: str) -> dict[str, dg.MetadataValue | str | int | bool]:
    return {"whole report": dg.MetadataValue.url(url)}
