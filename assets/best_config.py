"""The settings that training uses: found by a search, or as the pipeline's file says."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import dagster as dg
from pydantic import Field

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.evaluation_inputs import open_inputs
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import picture, table
from sluice.assets.resources import RECORDS, Progress, State, utc_now
from sluice.assets.run_records import write_run
from sluice.assets.searched_features import require_same_features
from sluice.assets.subjects import poc_subject, require_same, search_subject
from sluice.assets.traced import traced
from sluice.base.digests import digest_json, short
from sluice.base.home import Home
from sluice.base.receipts import Receipt, require
from sluice.base.settings import Record
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import TableRecord
from sluice.reports.folder import save_page
from sluice.tracking.wandb_trials import trial_callbacks
from sluice.training.device import device_type
from sluice.tuning.lanes import idle_workers
from sluice.tuning.left_behind import note_asked
from sluice.tuning.live_table import live_rows, table_text
from sluice.tuning.news import SearchNews
from sluice.tuning.plots import curves_png, importance_png, sensitivity_png, trials_png
from sluice.tuning.recipe import WITHOUT_SEARCH, changed_settings, settings_yaml
from sluice.tuning.records import Trial
from sluice.tuning.schedulers import is_population
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Setup
from sluice.tuning.strategy import plan_search
from sluice.tuning.study import Study, make_study, shown, trial_rows
from sluice.tuning.study_folder import results_path
from sluice.tuning.study_page import study_page
from sluice.tuning.tune_space import decode
from sluice.tuning.workload_search import search_workload

SHOWN_TRIALS = 12
SHOWN_SENSITIVITIES = 3
SHOWN_DIFFERENCES = 5
"""Dagster's log is a database: the page has them all."""


class BestConfig(Record):
    """What training goes on with, and what it was found by."""

    subject: dict[str, str] = Field(description="data, config, code and rules it was found for.")
    setup: Setup
    found: str = Field(description="Digest of the pipeline's config with this set-up.")
    num_trials: int = Field(description="Trials the best was chosen of; 0 without a search.")
    study: str | None = Field(description="Artifact digest of the search, JSON.")


def best_config_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "best_config"],
        ins={
            "raw_data": dg.AssetIn(key=[pipeline.name, "raw_data"]),
            "features": dg.AssetIn(key=[pipeline.name, "features"]),
        },
        deps=[dg.AssetKey([pipeline.name, "poc_report"])],
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=f"{pipeline.name}_training",
        kinds={"ray", "optuna"} if pipeline.search else {"python"},
        owners=list(pipeline.owners),
        pool=gpu_pool(pipeline),
        description="The settings of network and training: the best of a search on rows that no "
        "test ever reads (TUNE-1..4), or the pipeline's own when it asks for none. Refuses to "
        "start without a passed POC receipt. Killed at any moment, it goes on to the same "
        "decisions.",
    )
    @traced
    def best_config(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[State],
        sluice_progress: dg.ResourceParam[Progress],
        raw_data: TableRecord,
        features: FeatureSet,
    ) -> dg.MaterializeResult[BestConfig]:
        data = features.table.digest
        subject = search_subject(pipeline, data)
        with sluice_state.ledger() as ledger:
            gated = poc_subject(pipeline, data)
            require(ledger.find_receipt("poc", gated), gate="poc", subject=gated)
        if pipeline.search is not None:
            open_inputs(pipeline, sluice_state, data=data)
            write_run(pipeline, sluice_state.home, context.run.run_id, "search", data=data)
            require_same_features(pipeline, features.table, raw_data, sluice_state.store)
        study = _search(context, pipeline, sluice_state, sluice_progress, features, subject)
        setup = study.result.setup if study else pipeline.setup
        record = BestConfig(
            subject=subject,
            setup=setup,
            found=pipeline.with_setup(setup).config_digest,
            num_trials=study.result.num_trials if study else 0,
            study=sluice_state.store.put(study.model_dump_json().encode()) if study else None,
        )
        with sluice_state.ledger() as ledger:
            ledger.record_receipt(_receipt(record, study))
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(record.found),
            metadata=_metadata(pipeline, sluice_state, study, subject)
            if study
            else {"searched": "no: the settings are those of the pipeline's file"},
        )

    return best_config


def gpu_pool(pipeline: PipelineSettings) -> str | None:
    """Return the concurrency pool of stages that use a GPU here; None for those that do not."""
    here = pipeline.compute.address is None
    found = here and device_type(pipeline.training.device) == "cuda"
    return "gpu" if found or pipeline.compute.gpus_per_worker > 0 else None


def _search(
    context: dg.AssetExecutionContext,
    pipeline: PipelineSettings,
    state: State,
    progress: Progress,
    features: FeatureSet,
    subject: dict[str, str],
) -> Study | None:
    if pipeline.search is None:
        return None
    space = pipeline.searched
    _, searched = plan_search(space, pipeline.search, pipeline.setup)
    if idle := idle_workers(pipeline.search, pipeline.compute):
        context.log.warning(idle)
    # Other data or settings are another search; the same one goes on where it was.
    folder = search_folder(state.home, subject)
    if left := note_asked(folder, _asked(pipeline, features)):
        context.log.warning(
            f"An unfinished search is left behind, and this one starts afresh: "
            f"{'; '.join(left[:SHOWN_DIFFERENCES])}. Put them back to go on with it."
        )
    result = search_workload(
        pipeline.workload,
        pipeline.workload_settings,
        pipeline.setup,
        space,
        pipeline.search,
        table=features.table,
        folds=features.folds,
        artifacts=state.home.artifacts,
        folder=folder,
        hear=_Watch(context, progress, pipeline.search),
        compute=pipeline.compute,
        data_seed=pipeline.data_seed,
        sys_path=tuple(folder for folder in sys.path if folder),
        callbacks=trial_callbacks(
            pipeline.tracking,
            group=f"{pipeline.name}-{folder.name}",
            folder=state.home.wandb,
            values=partial(decode, searched, pipeline.setup),
            environ=os.environ,
            warn=context.log.warning,
        ),
        note=context.log.info,
    )
    study = make_study(result, space, pipeline.setup, seed=pipeline.search.seed)
    for line in study.warnings:
        context.log.warning(line)
    return study


def search_folder(home: Home, subject: Mapping[str, str]) -> Path:
    """Return the folder of the search for a subject."""
    return home.searches / short(digest_json(dict(subject)))


def _asked(pipeline: PipelineSettings, features: FeatureSet) -> dict[str, object]:
    """Return what the search is asked for, in words of the pipeline's file."""
    assert pipeline.search is not None
    return {
        "pipeline": pipeline.name,
        "data": features.table.digest,
        **pipeline.config,
        "search": pipeline.search.model_dump(mode="json"),
        "space": pipeline.searched.model_dump(mode="json"),
    }


def _receipt(record: BestConfig, study: Study | None) -> Receipt:
    trials: Sequence[Trial] = study.result.trials if study else ()
    return Receipt(
        gate="search",
        outcome="pass",
        passed=True,
        subject=record.subject | {"found": record.found},
        evidence={
            "num_trials": record.num_trials,
            "failed": sum(trial.state == "failed" for trial in trials),
            "loss": study.result.winner.loss if study else None,
            "study": record.study,
        },
        reason=f"Trial {study.result.best} of {record.num_trials} has the lowest validation loss."
        if study
        else "No search: the settings are those of the pipeline's file.",
        decided_at=utc_now(),
    )


def _metadata(
    pipeline: PipelineSettings, state: State, study: Study, subject: Mapping[str, str]
) -> dict[str, dg.MetadataValue | str | int | float]:
    result, importance = study.result, study.importance
    unit = pipeline.loaded_workload.loss_unit
    results = results_path(search_folder(state.home, subject), pipeline.compute.storage_path)
    page = save_page(
        study_page(study, title=pipeline.name, unit=unit, results=results),
        f"searches/{pipeline.name}",
        home=state.home,
        environ=os.environ,
    )
    winner = [
        {"parameter": path, "value": shown(result.winner.params, path)}
        for path in result.winner.params
    ]
    pictures = [
        picture(
            sensitivity_png(report, result, study.space, at_epoch=importance.at_epoch, unit=unit),
            f"loss over {report.path}",
        ).value
        for report in importance.parameters[:SHOWN_SENSITIVITIES]
    ]
    return {
        "trials": result.num_trials,
        "best trial": result.best,
        "validation loss": result.winner.loss,
        "winner": table(winner),
        **(
            {"to write into the pipeline's file": _to_write(study)}
            if study.base != result.setup
            else {}
        ),
        "to know": dg.MetadataValue.md("\n".join(f"- {line}" for line in study.warnings) or "-"),
        "strategy": result.strategy.reason,
        "whole study": dg.MetadataValue.url(page.url),
        "in TensorBoard": f"tensorboard --logdir {shlex.quote(results)}",
        "losses of the trials": picture(trials_png(result, unit=unit), "loss of every trial"),
        "learning curves": picture(
            curves_png(result, unit=unit), "validation loss of every trial over its epochs"
        ),
        "importance": picture(importance_png(importance), "share of importance by parameter"),
        **({"sensitivity": dg.MetadataValue.md("\n\n".join(pictures))} if pictures else {}),
        f"best {SHOWN_TRIALS} trials": table(trial_rows(study.ranking[:SHOWN_TRIALS])),
    }


def _to_write(study: Study) -> dg.MetadataValue:
    setup = study.result.setup
    lines = settings_yaml(changed_settings(study.base, setup))
    note = f"\n\n{WITHOUT_SEARCH}" if setup.training.changes else ""
    return dg.MetadataValue.md(f"```yaml\n{lines}```{note}")


class _Watch:
    """Tells Dagster's log what is new in the search, and whoever watches of every outcome."""

    def __init__(
        self, context: dg.AssetExecutionContext, progress: Progress, search: SearchSettings
    ) -> None:
        self._log = context.log
        self._progress = progress
        self._total = search.num_trials
        self._news = SearchNews(num_trials=self._total, population=is_population(search.scheduler))
        self._damaged = 0
        self._tenth = 0

    def __call__(self, trial: Trial, trials: tuple[Trial, ...]) -> None:
        damaged = sum(each.damaged_checkpoints for each in trials)
        if damaged > self._damaged:
            self._log.warning(
                f"trial {trial.id}: a damaged checkpoint was passed over; an older one is used"
            )
        self._damaged = damaged
        best = min(trials, key=lambda each: (each.loss, each.id))
        for line in self._news.lines(trials):
            self._log.info(line)
        rows, ended = live_rows(trials), self._news.num_ended
        if 10 * ended // self._total > self._tenth:
            self._tenth = 10 * ended // self._total
            self._log.info(f"{ended} of {self._total} trials ended\n{table_text(rows)}")
        self._progress(
            f"trial {trial.id} at epoch {len(trial.epochs)}, best {best.loss:.4g} "
            f"(trial {best.id})",
            done=ended,
            total=self._total,
            rows=rows,
        )


def with_best(pipeline: PipelineSettings, best: BestConfig) -> PipelineSettings:
    """Return the pipeline with the settings that were found for it.

    Raises:
        GateBlocked: They were found for other settings, code or rules than the present ones.
    """
    now = search_subject(pipeline, best.subject["data"])
    for role, digest in now.items():
        require_same(
            f"The best config's {role}",
            made_for=best.subject.get(role, ""),
            now=digest,
            remedy="Materialize poc_report and best_config first.",
        )
    return pipeline.with_setup(best.setup)
