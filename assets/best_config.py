"""Asset ``best_config``: training settings, from a hyperparameter search or the pipeline's YAML."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import dagster as dg
from pydantic import Field

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.evaluation_inputs import PlannedEvaluation, open_inputs
from sluice.assets.features import FeatureSet
from sluice.assets.interrupts import stopping_cleanly
from sluice.assets.receipt_subjects import poc_subject, require_same, search_subject
from sluice.assets.resources import RECORDS, ProgressReporter, SluiceState, utc_now
from sluice.assets.run_records import write_run
from sluice.assets.searched_features import require_same_features
from sluice.assets.spans import spanned
from sluice.assets.study_metadata import study_metadata
from sluice.base.digests import digest_json, short
from sluice.base.home import Home
from sluice.base.receipts import Receipt, require
from sluice.base.settings import Record
from sluice.cluster.settings import ComputeSettings
from sluice.config.poc_settings import PocSettings
from sluice.config.resolved import SearchInputs, TrainingInputs
from sluice.data.table import TableRecord
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_trials import trial_callbacks
from sluice.training.device import device_type
from sluice.training.settings import TrainSettings
from sluice.tuning.concurrency import describe_idle_workers
from sluice.tuning.live_table import live_rows, table_text
from sluice.tuning.records import TrialRecord
from sluice.tuning.schedulers import is_population_based
from sluice.tuning.search_progress import SearchProgress
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import TrialSettings
from sluice.tuning.stale_searches import record_request
from sluice.tuning.strategy import plan_search
from sluice.tuning.study_folder import results_path
from sluice.tuning.study_summary import StudySummary, summarize_study
from sluice.tuning.tune_space import decode
from sluice.tuning.workload_search import search_workload

MAX_LOGGED_DIFFERENCES = 5
"""Maximum number of differing settings in a log line; Dagster stores its log in a database."""


class BestConfig(Record):
    """Settings that training uses, and the search that selected them."""

    subject: dict[str, str] = Field(
        description="Digests of data, config, code and search settings."
    )
    setup: TrialSettings = Field(description="Settings of the best trial, or of the YAML file.")
    found: str = Field(description="Digest of the pipeline's config with these settings.")
    num_trials: int = Field(description="Number of trials of the search; 0 without a search.")
    study: str | None = Field(
        description="Artifact digest of the study (JSON); None without a search."
    )


def best_config_asset(
    pipeline: str,
    inputs: SearchInputs,
    *,
    poc: PocSettings,
    planned_evaluation: PlannedEvaluation,
    tracking: TrackingSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""
    base = inputs.base

    @dg.asset(
        key=[pipeline, "best_config"],
        ins={
            "raw_data": dg.AssetIn(key=[pipeline, "raw_data"]),
            "features": dg.AssetIn(key=[pipeline, "features"]),
        },
        deps=[dg.AssetKey([pipeline, "poc_report"])],
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"ray", "optuna"} if inputs.search else {"python"},
        pool=gpu_pool(inputs.compute, base.training),
        description="Settings of the network and its training. With a `search` section, the best "
        "trial of a hyperparameter search on validation rows (test rows are never read); without "
        "one, the settings of the pipeline's YAML. Requires a passed proof-of-concept receipt. An "
        "interrupted search resumes. An ordered search then reaches the same result as without the "
        "interruption.",
    )
    @spanned
    def best_config(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        sluice_progress: dg.ResourceParam[ProgressReporter],
        raw_data: TableRecord,
        features: FeatureSet,
    ) -> dg.MaterializeResult[BestConfig]:
        data_digest = features.table.digest
        subject = search_subject(inputs, data_digest)
        with sluice_state.ledger() as ledger:
            required_subject = poc_subject(base, poc, data_digest)
            require(
                ledger.find_receipt("poc", required_subject), gate="poc", subject=required_subject
            )
        if inputs.search is not None:
            open_inputs(pipeline, base, planned_evaluation, sluice_state, features=features)
            write_run(
                base,
                inputs,
                sluice_state.home,
                context.run.run_id,
                "search",
                seeds=planned_evaluation.seeds,
                data=data_digest,
            )
            require_same_features(inputs, features.table, raw_data, sluice_state.store)
        study = _run_search(
            context, pipeline, inputs, tracking, sluice_state, sluice_progress, features, subject
        )
        setup = study.result.setup if study else inputs.trial_settings
        record = BestConfig(
            subject=subject,
            setup=setup,
            found=base.with_settings(setup).config_digest,
            num_trials=study.result.num_trials if study else 0,
            study=sluice_state.store.put(study.model_dump_json().encode()) if study else None,
        )
        with sluice_state.ledger() as ledger:
            ledger.record_receipt(_make_receipt(record, study))
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(record.found),
            metadata=study_metadata(
                study,
                pipeline,
                sluice_state.home,
                unit=base.workload.loss_unit,
                results=results_path(
                    search_folder(sluice_state.home, subject), inputs.compute.storage_path
                ),
            )
            if study
            else {"searched": "No. The settings come from the pipeline's YAML."},
        )

    return best_config


def gpu_pool(compute: ComputeSettings, training: TrainSettings) -> str | None:
    """Return the concurrency pool of stages that use a GPU; None for stages that do not."""
    is_local = compute.address is None
    uses_local_gpu = is_local and device_type(training.device) == "cuda"
    return "gpu" if uses_local_gpu or compute.gpus_per_worker > 0 else None


def _run_search(
    context: dg.AssetExecutionContext,
    pipeline: str,
    inputs: SearchInputs,
    tracking: TrackingSettings,
    state: SluiceState,
    progress: ProgressReporter,
    features: FeatureSet,
    subject: dict[str, str],
) -> StudySummary | None:
    if inputs.search is None:
        return None
    space, setup = inputs.space, inputs.trial_settings
    _, searched_space = plan_search(space, inputs.search, setup)
    if idle_warning := describe_idle_workers(inputs.search, inputs.compute):
        context.log.warning(idle_warning)
    # A stored search with the same data and settings is resumed; any difference starts a new one.
    folder = search_folder(state.home, subject)
    if differences := record_request(folder, _search_request(pipeline, inputs, features)):
        context.log.warning(
            "An unfinished search has other settings or rows, so a new search starts. "
            f"Differences: {'; '.join(differences[:MAX_LOGGED_DIFFERENCES])}. Restore the earlier "
            "values to resume it."
        )
    with stopping_cleanly():
        result = search_workload(
            inputs.base.path,
            inputs.base.workload_settings,
            setup,
            space,
            inputs.search,
            table=features.table,
            folds=features.folds,
            artifacts=state.home.artifacts,
            folder=folder,
            on_report=_SearchReporter(context, progress, inputs.search),
            compute=inputs.compute,
            data_seed=inputs.base.data_seed,
            sys_path=tuple(folder for folder in sys.path if folder),
            callbacks=trial_callbacks(
                tracking,
                group=f"{pipeline}-{folder.name}",
                folder=state.home.wandb,
                decode_config=partial(decode, searched_space, setup),
                environ=os.environ,
                warn=context.log.warning,
            ),
            log=context.log.info,
        )
    study = summarize_study(result, space, setup, seed=inputs.search.seed)
    for warning in study.warnings:
        context.log.warning(warning)
    return study


def search_folder(home: Home, subject: Mapping[str, str]) -> Path:
    """Return the folder of the search whose receipt has this subject."""
    return home.searches / short(digest_json(dict(subject)))


def _search_request(pipeline: str, inputs: SearchInputs, features: FeatureSet) -> dict[str, object]:
    """Return what defines a search: the digest of the rows, and all settings by name in the YAML.

    This definition is stored with the search. If another search starts before this one is finished,
    the differences between both definitions are reported.
    """
    assert inputs.search is not None
    return {
        "pipeline": pipeline,
        "data": features.table.digest,
        **inputs.base.config,
        "search": inputs.search.model_dump(mode="json"),
        "space": inputs.space.model_dump(mode="json"),
    }


def _make_receipt(record: BestConfig, study: StudySummary | None) -> Receipt:
    trials: Sequence[TrialRecord] = study.result.trials if study else ()
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
        else "No search is configured: the settings come from the pipeline's YAML.",
        decided_at=utc_now(),
    )


class _SearchReporter:
    """Writes new results of the search to Dagster's log and reports progress after each result."""

    def __init__(
        self, context: dg.AssetExecutionContext, progress: ProgressReporter, search: SearchSettings
    ) -> None:
        self._log = context.log
        self._progress = progress
        self._num_trials = search.num_trials
        self._search_progress = SearchProgress(
            num_trials=self._num_trials, is_population_based=is_population_based(search.scheduler)
        )
        self._num_damaged_checkpoints = 0
        self._num_tenths_logged = 0
        """Number of tenths of the trials that had ended at the last logged table, 0 to 10."""

    def __call__(self, trial: TrialRecord, trials: tuple[TrialRecord, ...]) -> None:
        num_damaged_checkpoints = sum(t.damaged_checkpoints for t in trials)
        if num_damaged_checkpoints > self._num_damaged_checkpoints:
            self._log.warning(
                f"trial {trial.id}: skipped a damaged checkpoint and resumed from an older one"
            )
        self._num_damaged_checkpoints = num_damaged_checkpoints
        best_trial = min(trials, key=lambda t: (t.loss, t.id))
        for line in self._search_progress.new_messages(trials):
            self._log.info(line)
        rows, num_ended = live_rows(trials), self._search_progress.num_ended
        num_tenths = 10 * num_ended // self._num_trials
        if num_tenths > self._num_tenths_logged:
            self._num_tenths_logged = num_tenths
            self._log.info(f"{num_ended} of {self._num_trials} trials ended\n{table_text(rows)}")
        self._progress(
            f"trial {trial.id} at epoch {len(trial.epochs)}, best loss {best_trial.loss:.4g} "
            f"(trial {best_trial.id})",
            num_done=num_ended,
            total=self._num_trials,
            rows=rows,
        )


def apply_best_config(inputs: SearchInputs, best: BestConfig) -> TrainingInputs:
    """Return the inputs of a training with the selected settings.

    Raises:
        GateBlocked: The settings were selected with another config, other code or other search
            settings. The data are not compared.
    """
    current_subject = search_subject(inputs, best.subject["data"])
    for role, digest in current_subject.items():
        require_same(
            f"The best config's {role}",
            made_for=best.subject.get(role, ""),
            current=digest,
            remedy="Materialize poc_report and best_config first.",
        )
    return inputs.base.with_settings(best.setup)
