"""Asset ``trained_models``: one network for each seed and fold; finished networks are reused."""

import os
import sys
import time

import dagster as dg
import pandas as pd

from sluice.assets.best_config import BestConfig, apply_best_config, gpu_pool
from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.evaluation_inputs import PlannedEvaluation, open_inputs
from sluice.assets.features import FeatureSet
from sluice.assets.interrupts import stopping_cleanly
from sluice.assets.metadata import REUSED, picture, table
from sluice.assets.receipt_subjects import candidate_subject, poc_subject, require_same
from sluice.assets.replays import save_replays
from sluice.assets.resources import RECORDS, ProgressReporter, SluiceState
from sluice.assets.run_records import write_run
from sluice.assets.spans import spanned
from sluice.base.artifacts import ArtifactStore
from sluice.base.receipts import require
from sluice.config.poc_settings import PocSettings
from sluice.config.resolved import SearchInputs
from sluice.data.table import load_table
from sluice.evaluation.plots import training_curves_png
from sluice.evaluation.reference import require_scorable
from sluice.eventlog.event_log import read_events
from sluice.registry.stored_code import CodeSource
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_fold_runs import log_fold_runs, training_group
from sluice.training.code import identify_code
from sluice.training.curve_diagnosis import DiagnosisSettings
from sluice.training.fold_run_events import FoldRunEvent
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.member_diagnosis import diagnose_members
from sluice.training.members import TrainedModels
from sluice.training.merged_log import merge_logs
from sluice.training.parallel import train_members


def trained_models_asset(
    pipeline: str,
    inputs: SearchInputs,
    *,
    poc: PocSettings,
    planned_evaluation: PlannedEvaluation,
    diagnosis: DiagnosisSettings,
    production_code: CodeSource,
    tracking: TrackingSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, "trained_models"],
        ins={name: dg.AssetIn(key=[pipeline, name]) for name in ("features", "best_config")},
        deps=[dg.AssetKey([pipeline, "poc_report"])],
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pytorch"},
        pool=gpu_pool(inputs.compute, inputs.base.training),
        description="One network per seed and fold, each with the weights of its best epoch. "
        "Requires passed proof-of-concept and search receipts for exactly this data, config and "
        "code. An interrupted training resumes from its last checkpoint with bitwise identical "
        "results.",
    )
    @spanned
    def trained_models(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        sluice_progress: dg.ResourceParam[ProgressReporter],
        features: FeatureSet,
        best_config: BestConfig,
    ) -> dg.MaterializeResult[TrainedModels]:
        data_digest = features.table.digest
        require_same(
            "The best config's data",
            made_for=best_config.subject["data"],
            current=data_digest,
            remedy="Materialize best_config first.",
        )
        training_inputs = apply_best_config(inputs, best_config)
        workload = training_inputs.workload
        with sluice_state.ledger() as ledger:
            for gate, subject in (
                ("poc", poc_subject(inputs.base, poc, data_digest)),
                ("search", best_config.subject | {"found": training_inputs.config_digest}),
            ):
                require(ledger.find_receipt(gate, subject), gate=gate, subject=subject)
            production = ledger.production(pipeline)
        open_inputs(pipeline, training_inputs, planned_evaluation, sluice_state, features=features)
        if production is not None:  # fail before the training, not in the evaluation after it
            require_scorable(
                production,
                workload,
                load_table(features.table, sluice_state.store),
                sluice_state.store,
                code=production_code,
            )
        specs = [
            FoldRunSpec(
                workload=training_inputs.path,
                workload_settings=dict(training_inputs.workload_settings),
                model=training_inputs.model,
                training=training_inputs.training,
                seed=seed,
                data_seed=training_inputs.data_seed,
                fold=fold,
                table=features.table,
                artifacts=sluice_state.home.artifacts,
                runs=sluice_state.home.runs,
                sys_path=tuple(folder for folder in sys.path if folder),
            )
            for seed in planned_evaluation.seeds
            for fold in features.folds
        ]
        run_record_path = write_run(
            training_inputs,
            inputs,
            sluice_state.home,
            context.run.run_id,
            "training",
            seeds=planned_evaluation.seeds,
            data=data_digest,
        )
        codec = workload.codec().identity()
        start_s = time.perf_counter()
        progress = _TrainingProgress(context, sluice_progress, num_fold_runs=len(specs))
        with (
            stopping_cleanly(),
            log_fold_runs(
                tracking,
                pipeline=pipeline,
                group=training_group(pipeline, **candidate_subject(training_inputs, data_digest)),
                config=training_inputs.config,
                store=sluice_state.store,
                folder=sluice_state.home.wandb,
                environ=os.environ,
                warn=context.log.warning,
            ) as log_to_wandb,
        ):

            def on_event(event: FoldRunEvent) -> None:
                log_to_wandb(event)
                progress(event)

            members, num_reused = train_members(specs, compute=inputs.compute, on_event=on_event)
        seconds = time.perf_counter() - start_s
        event_log = merge_logs(
            members,
            sluice_state.store,
            workload=workload,
            architecture=training_inputs.model.architecture,
            config=training_inputs.config,
        )
        code_identity = identify_code(workload, training_inputs.model)
        curves = read_epochs(event_log, sluice_state.store)
        symptoms = diagnose_members(
            members,
            workload,
            load_table(features.table, sluice_state.store),
            features.folds,
            training_inputs.model,
            diagnosis,
            training=training_inputs.training,
            store=sluice_state.store,
        )
        record = TrainedModels(
            **candidate_subject(training_inputs, data_digest),
            code_identity=code_identity,
            codec=codec,
            seeds=planned_evaluation.seeds,
            members=tuple(members),
            event_log=event_log,
            seconds=seconds,
            reused=num_reused,
            # The verdict repeats advice on common symptoms only. All symptoms are logged below.
            symptoms=tuple(
                symptom.advice(pipeline)
                for symptom in symptoms
                if symptom.num_affected >= diagnosis.common_share * symptom.num_members
            ),
        )
        for symptom in symptoms:
            context.log.warning(symptom.sentence)
        if code_identity.coverage_warning:
            context.log.warning(code_identity.coverage_warning)
        traces = save_replays(pipeline, members, sluice_state, environ=os.environ)
        for sentence in traces.errors:
            context.log.error(sentence)
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(record.candidate),
            metadata={
                "members": len(members),
                "reused": num_reused,
                **({REUSED: f"{num_reused} of {len(members)} trainings"} if num_reused else {}),
                "seconds": seconds,
                "candidate": record.candidate,
                "diagnosis": dg.MetadataValue.md(
                    "\n".join(f"- {symptom.sentence}" for symptom in symptoms)
                    or "The training curves show no symptoms."
                ),
                **(
                    {"code digest gap": code_identity.coverage_warning}
                    if code_identity.coverage_warning
                    else {}
                ),
                "run record": dg.MetadataValue.path(str(run_record_path)),
                "loss per epoch": picture(
                    training_curves_png(curves, unit=workload.loss_unit),
                    "training and validation loss per epoch",
                ),
                "tracer": dg.MetadataValue.md(traces.markdown),
                **{
                    f"trace replay, {name}": dg.MetadataValue.url(url)
                    for name, url in traces.replays.items()
                },
                "fold runs": table(
                    [
                        {
                            "seed": m.seed,
                            "fold": m.fold_id,
                            "best epoch": m.best_epoch,
                            "epochs": m.epochs_run,
                            "train loss": m.train_loss,
                            "validation loss": m.val_loss,
                            **{f"test {k}": v for k, v in m.test_metrics.items()},
                            "seconds": m.seconds,
                        }
                        for m in members
                    ]
                ),
                "event log": str(sluice_state.store.path(event_log)),
            },
        )

    return trained_models


def read_epochs(event_log: str, store: ArtifactStore) -> pd.DataFrame:
    """Return one row per finished epoch: seed, fold_id, epoch, train_loss, val_loss, ..."""
    events = read_events(store.path(event_log)).events
    return pd.DataFrame([e for e in events if e.get("event") == "epoch_complete"])


class _TrainingProgress:
    """Logs finished fold runs, and reports the progress of all fold runs."""

    def __init__(
        self, context: dg.AssetExecutionContext, progress: ProgressReporter, *, num_fold_runs: int
    ) -> None:
        self._log = context.log
        self._progress = progress
        self._num_fold_runs = num_fold_runs
        self._num_finished = 0

    def __call__(self, event: FoldRunEvent) -> None:
        fold_run = f"seed {event.seed} fold {event.fold_id}"
        if event.kind in ("finished", "reused"):
            self._num_finished += 1
            self._log.info(f"{self._num_finished}/{self._num_fold_runs} {fold_run} {event.kind}")
        if event.num_damaged_checkpoints:
            self._log.warning(
                f"{fold_run}: skipped a damaged checkpoint and resumed from an older one"
            )
        if event.kind == "lost":
            self._log.warning(f"{fold_run}: {event.reason}; it resumes from its last checkpoint")
        if event.kind == "replaces":
            self._log.warning(
                f"{fold_run}: an unfinished training used other settings, so the training "
                f"restarts. Differences: {event.reason}. Restore the old settings to resume it."
            )
        is_resumed = event.kind == "started" and bool(event.epochs_done or event.steps_done)
        text = f"{fold_run} {_describe_progress(event)}"
        self._progress(
            text, num_done=self._num_finished, total=self._num_fold_runs, is_important=is_resumed
        )


def _describe_progress(event: FoldRunEvent) -> str:
    if event.kind == "epoch":
        return f"epoch {event.epochs_done}/{event.max_epochs}"
    if event.kind != "started" or not (event.epochs_done or event.steps_done):
        return event.kind
    step_note = f" after its step {event.steps_done:,}" if event.steps_done else ""
    return f"resumes at epoch {event.epochs_done + 1}/{event.max_epochs}{step_note}"
