"""Asset ``evaluation``: test losses of candidate and reference, and regression suite results."""

import os

import dagster as dg

from sluice.assets.best_config import BestConfig, apply_best_config
from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.evaluation_record import EvaluatedArm, Evaluation, StoredTable
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import picture, table
from sluice.assets.receipt_subjects import candidate_subject, require_same
from sluice.assets.resources import RECORDS, SluiceState, utc_now
from sluice.assets.spans import spanned
from sluice.base.digests import digest_json, short
from sluice.config.resolved import SearchInputs
from sluice.data.table import TableRecord, load_table
from sluice.evaluation.imported_baseline import find_baseline
from sluice.evaluation.plots import cumulative_gain_png
from sluice.evaluation.reference import score_version
from sluice.evaluation.scoring import (
    ModelScores,
    Scores,
    score_baseline,
    score_candidate,
    window_digest,
)
from sluice.evaluation.simple_rules import Baseline, BaselineSettings, choose_baseline
from sluice.evaluation.suites.hard_suite_refresh import refresh_hard_suite
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.evaluation.suites.page import suites_page
from sluice.evaluation.suites.plots import changes_png
from sluice.evaluation.suites.result import CHANGES, SuiteReport
from sluice.evaluation.suites.run import SuiteScores, run_suites
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.evaluation.worst_rows import describe_worst_rows
from sluice.registry.lineage import BASELINE
from sluice.registry.records import Version
from sluice.registry.reference_choice import choose_reference
from sluice.registry.stored_code import CodeSource
from sluice.reports.folder import save_page
from sluice.training.members import TrainedModels
from sluice.training.weights import load_member

_MAX_ROWS_PER_SUITE = 40
"""Maximum number of rows of one suite on the report page."""


def evaluation_asset(
    pipeline: str,
    inputs: SearchInputs,
    *,
    baseline_settings: BaselineSettings,
    suites: SuiteSettings,
    approved_candidate: str | None,
    production_code: CodeSource,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline.

    Args:
        pipeline: Name of the pipeline.
        inputs: Inputs of search and training.
        baseline_settings: Settings of the baseline.
        suites: Settings of the regression suites.
        approved_candidate: Candidate digest of the version in the setting ``guards.approved``; None
            if it is not set.
        production_code: Code with which the reference is scored.
    """

    @dg.asset(
        key=[pipeline, "evaluation"],
        ins={
            name: dg.AssetIn(key=[pipeline, name])
            for name in ("raw_data", "features", "best_config", "trained_models")
        },
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pytorch", "parquet"},
        description="Test losses of the candidate and of its reference, by seed and row. The "
        "reference is the version in production or, before the first promotion, the baseline. "
        "Includes the results of the candidate on all regression suites.",
    )
    @spanned
    def evaluation(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        raw_data: TableRecord,
        features: FeatureSet,
        best_config: BestConfig,
        trained_models: TrainedModels,
    ) -> dg.MaterializeResult[Evaluation]:
        store = sluice_state.store
        training_inputs = apply_best_config(inputs, best_config)
        workload = training_inputs.workload
        subject = candidate_subject(training_inputs, features.table.digest)
        for role, digest in subject.items():
            require_same(
                f"The trained models' {role}",
                made_for=getattr(trained_models, role),
                current=digest,
                remedy="Materialize features, poc_report, best_config and trained_models first.",
            )
        require_same(
            "The features' raw rows",
            made_for=features.raw,
            current=raw_data.digest,
            remedy="Materialize features first.",
        )
        frame = load_table(features.table, store)
        window = window_digest(frame, features.folds)
        with sluice_state.ledger() as ledger:
            production = ledger.production(pipeline)
            reference = choose_reference(
                ledger, pipeline, candidate=trained_models.candidate, window=window
            )
            approved_version = (
                ledger.version_of(pipeline, approved_candidate) if approved_candidate else None
            )
            baseline_inputs = workload, frame, features.folds
            baseline = (
                find_baseline(ledger, pipeline, baseline_settings, store, *baseline_inputs)
                if reference is None
                else choose_baseline(*baseline_inputs, baseline_settings)
            )

        def scores_of(version: Version) -> ModelScores:
            return score_version(
                version,
                workload,
                load_table(raw_data, store),
                frame,
                features.folds,
                store,
                code=production_code,
            )

        candidate_scores = score_candidate(
            workload,
            frame,
            features.folds,
            trained_models.members,
            lambda member: load_member(member, workload, training_inputs.model, store),
            subject=trained_models.candidate,
        )
        baseline_scores = score_baseline(
            workload, frame, features.folds, baseline, subject=BASELINE
        )
        if reference is None:
            reference_name = baseline.name
            reference_scores = ModelScores(by_seed=baseline_scores, deployed=baseline_scores)
        else:
            reference_name = f"version {reference.number} ({short(reference.candidate)})"
            reference_scores = scores_of(reference)
            if reference_scores.note:
                context.log.warning(reference_scores.note)
        context.log.info(f"compared with {reference_name}")
        library = SuiteLibrary(sluice_state.home.suites / pipeline, store)
        # The losses of production refresh the hard suite; before the first promotion, the losses of
        # the baseline do. If the candidate itself is in production, the reference is
        # another version, and the suite is not refreshed.
        if reference == production:
            refresh_hard_suite(
                library,
                reference_scores.by_seed.losses,
                frame,
                workload.feature_columns,
                share=suites.hard_share,
                at=utc_now(),
            )
        report = run_suites(
            library.newest(),
            SuiteScores(
                candidate=candidate_scores.by_seed,
                reference=reference_scores.by_seed,
                baseline=baseline_scores,
            ),
            workload,
            frame,
            trained_models.members,
            suites,
        )
        record = Evaluation(
            subject=subject,
            window=window,
            candidate=_store_arm(candidate_scores, sluice_state),
            reference=_store_arm(reference_scores, sluice_state),
            reference_name=reference_name,
            reference_code=reference_scores.note,
            symptoms=trained_models.symptoms,
            approved=StoredTable.put(scores_of(approved_version).by_seed.losses, store)
            if approved_version
            else None,
            suites=store.put(report.model_dump_json().encode()),
            worst_rows=describe_worst_rows(
                candidate_scores.by_seed.losses,
                reference_scores.by_seed.losses,
                frame,
                workload.display_column,
            ),
        )
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(digest_json(record.model_dump(mode="json"))),
            metadata={
                "compared with": reference_name,
                **({"baseline rules": _rule_loss_table(baseline)} if baseline.losses else {}),
                **({"reference code": reference_scores.note} if reference_scores.note else {}),
                "test rows": candidate_scores.by_seed.losses.num_rows,
                "metrics": table(
                    _metric_rows(candidate_scores.by_seed, reference_scores.by_seed, reference_name)
                ),
                "cumulative gain": picture(
                    cumulative_gain_png(
                        candidate_scores.by_seed.losses,
                        reference_scores.by_seed.losses,
                        unit=workload.loss_unit,
                    ),
                    "cumulative gain over the test rows",
                ),
                **suite_metadata(report, pipeline, sluice_state),
            },
        )

    return evaluation


def _store_arm(scores: ModelScores, state: SluiceState) -> EvaluatedArm:
    by_seed, store = scores.by_seed, state.store
    return EvaluatedArm(
        losses=StoredTable.put(by_seed.losses, store),
        deployed=StoredTable.put(scores.deployed.losses, store),
        mistakes=StoredTable.put(by_seed.mistakes, store) if by_seed.mistakes else None,
        metric_table=by_seed.metric_table,
    )


def _metric_rows(
    candidate: Scores, reference: Scores, reference_name: str
) -> list[dict[str, object]]:
    return [
        {
            "metric": metric,
            "candidate": value,
            reference_name: reference.metrics.get(metric, float("nan")),
        }
        for metric, value in candidate.metrics.items()
    ]


def suite_metadata(
    report: SuiteReport, pipeline: str, state: SluiceState
) -> dict[str, dg.MetadataValue | str]:
    """Return a summary of the suite results, with a link to the page that lists the rows."""
    if not report.results:
        return {"regression suites": "none defined"}
    page = save_page(
        suites_page(report, title=pipeline, max_examples=_MAX_ROWS_PER_SUITE),
        f"suites/{pipeline}/candidate",
        home=state.home,
        environ=os.environ,
    )
    counts = [
        {
            "suite": f"{result.name} v{result.version}",
            "rows scored": f"{len(result.rows)} of {result.num_rows}",
            **{change: result.count(change) for change in CHANGES},
            "suspected data errors": result.count_suspects("data"),
            "gain": result.gain.gain,
            "outcome": result.gain.outcome,
        }
        for result in report.results
    ]
    return {
        "regression suites": table(counts),
        "suite guards": report.reason,
        "changes by suite": picture(changes_png(report.results), "rows fixed and broken by suite"),
        "suite report": dg.MetadataValue.url(page.url),
    }


def _rule_loss_table(baseline: Baseline) -> dg.MetadataValue:
    """Return the validation loss of every simple rule, by fold."""
    return table(
        [
            {"fold": fold_id, **{name: f"{loss:.4g}" for name, loss in losses.items()}}
            for fold_id, losses in baseline.losses.items()
        ]
    )
