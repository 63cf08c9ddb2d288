"""Checks of the trained networks before their losses are compared."""

import math
from collections.abc import Iterator, Sequence

import dagster as dg

from sluice.assets.best_config import BestConfig, with_best
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.replays import shared_errors, trace_errors
from sluice.assets.resources import SluiceState
from sluice.assets.trained_models import epochs
from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.checks.outcomes import blocking, failing_with_messages, result
from sluice.config.poc_settings import PredictionSettings
from sluice.config.resolved import SearchInputs, TrainingInputs
from sluice.data.table import load_table
from sluice.evaluation.outputs import predict
from sluice.eventlog.event_log import validate_log
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.failfast.learning.predictions import prediction_spread
from sluice.training.members import TrainedModels
from sluice.training.weights import load_member

LOG = "event_log_is_valid"
ALL_TRAINED = "every_seed_and_fold_is_trained"
FINITE = "losses_and_gradients_are_finite"
NOT_CONSTANT = "predictions_have_plausible_spread"
TRACE_CLEAN = "tracer_reports_no_errors"

_MAX_LARGE_OUTPUTS = 256
"""Maximum number of test rows whose outputs are in memory together, if the workload declares that
its outputs are large."""


def trained_models_checks(
    pipeline: str, inputs: SearchInputs, predictions: PredictionSettings, *, seeds: Sequence[int]
) -> dg.AssetChecksDefinition:
    """Build the checks of ``trained_models``."""
    asset = [pipeline, "trained_models"]
    best_key = [pipeline, "best_config"]
    features_key = [pipeline, "features"]

    @dg.multi_asset_check(
        name=f"{pipeline}__trained_models_checks",
        specs=[
            blocking(LOG, asset, "Every event of the merged event log has the required fields."),
            blocking(
                ALL_TRAINED, asset, "There is exactly one trained network for each seed and fold."
            ),
            blocking(FINITE, asset, "All losses and gradient norms are finite."),
            blocking(
                NOT_CONSTANT,
                asset,
                "The standard deviation of the predictions is plausible for the targets: the "
                "networks do not predict a constant.",
                reads=[features_key, best_key],
            ),
            blocking(TRACE_CLEAN, asset, "The training tracer reports no error in most trainings."),
        ],
        ins={
            "trained_models": dg.AssetIn(key=asset),
            "best_config": dg.AssetIn(key=best_key),
            "features": dg.AssetIn(key=features_key),
        },
    )
    @failing_with_messages
    def trained_models_checks(
        sluice_state: dg.ResourceParam[SluiceState],
        trained_models: TrainedModels,
        best_config: BestConfig,
        features: FeatureSet,
    ) -> Iterator[dg.AssetCheckResult]:
        yield _log(inputs.base.workload.headline_metric, sluice_state, trained_models, asset)
        yield _all_trained(seeds, trained_models, features, asset)
        yield _finite(sluice_state, trained_models, asset)
        yield _prediction_spread(
            with_best(inputs, best_config),
            predictions,
            sluice_state,
            trained_models,
            features,
            asset,
        )
        yield _trace(trained_models, asset)

    return trained_models_checks


def _log(
    headline: str, state: SluiceState, trained: TrainedModels, asset: list[str]
) -> dg.AssetCheckResult:
    try:
        report = validate_log(
            state.store.path(trained.event_log),
            test_metrics=tuple(f"test_{name}" for name in trained.members[0].test_metrics),
            headline=f"mean_{headline}",
        )
    except ContractError as error:
        return result(LOG, asset, passed=False, message=str(error))
    return result(
        LOG,
        asset,
        passed=report.valid,
        message=f"{sum(report.counts.values())} events have all required fields.",
        metadata=dict(report.counts),
    )


def _all_trained(
    seeds: Sequence[int], trained: TrainedModels, features: FeatureSet, asset: list[str]
) -> dg.AssetCheckResult:
    positions = {(m.seed, m.fold_id) for m in trained.members}
    wanted = {(seed, fold.fold_id) for seed in seeds for fold in features.folds}
    return result(
        ALL_TRAINED,
        asset,
        passed=positions == wanted and len(positions) == len(trained.members),
        message=f"{pluralize(len(trained.members), 'member')} for {pluralize(len(seeds), 'seed')} "
        f"and {pluralize(len(features.folds), 'fold')}."
        if positions == wanted
        else f"Missing (seed, fold): {sorted(wanted - positions)}, unexpected: "
        f"{sorted(positions - wanted)}. Materialize trained_models again.",
    )


def _finite(state: SluiceState, trained: TrainedModels, asset: list[str]) -> dg.AssetCheckResult:
    columns = ["train_loss", "val_loss", "grad_norm_max"]
    curves = epochs(trained.event_log, state.store)
    numbers = curves[columns].astype(float)
    bad = curves[~numbers.map(math.isfinite).all(axis=1)]
    positions = [f"seed {e.seed} fold {e.fold_id} epoch {e.epoch}" for e in bad.itertuples()]
    return result(
        FINITE,
        asset,
        passed=not positions and len(curves) > 0,
        message=f"Non-finite losses or gradients: {', '.join(positions[:5])} "
        f"({pluralize(len(positions), 'epoch')}). Lower the learning rate, or check the loss for "
        "log(0) and division by 0."
        if positions
        else f"All losses and gradient norms of {pluralize(len(curves), 'epoch')} are finite.",
        metadata={"largest gradient norm": float(numbers["grad_norm_max"].max())},
    )


def _trace(trained: TrainedModels, asset: list[str]) -> dg.AssetCheckResult:
    traced = [member for member in trained.members if member.replay]
    shared = shared_errors(trained.members)
    errors = [error for member in trained.members for error in trace_errors(member)]
    if shared:
        first_shared = next(
            error for member in traced for error in trace_errors(member, faults=shared)
        )
        message = (
            f"In most trainings: {', '.join(shared)}. {first_shared} See the trace replay in the "
            "metadata of trained_models. If all of this is intended, set training.trace to false."
        )
    elif not traced:
        message = "No training was traced. Set training.trace to true to enable the tracer."
    elif errors:
        message = (
            f"{pluralize(len(errors), 'error')} in {pluralize(len(traced), 'traced training')}, "
            f"and no fault in more than half of them. The first error: {errors[0]}"
        )
    else:
        findings = sum(len(member.diagnoses) for member in traced)
        message = (
            f"{pluralize(len(traced), 'training')} traced: no errors, "
            f"{pluralize(findings, 'other finding')}."
        )
    return result(
        TRACE_CLEAN, asset, passed=not shared, message=message, metadata={"traced": len(traced)}
    )


def _prediction_spread(
    inputs: TrainingInputs,
    limits: PredictionSettings,
    state: SluiceState,
    trained: TrainedModels,
    features: FeatureSet,
    asset: list[str],
) -> dg.AssetCheckResult:
    workload = inputs.workload
    frame = load_table(features.table, state.store)
    tests = {fold.fold_id: workload.examples(frame, fold.test) for fold in features.folds}
    if not workload.keep_outputs:
        tests = {number: sample_evenly(test, _MAX_LARGE_OUTPUTS) for number, test in tests.items()}
    rows = []
    for member in trained.members:
        model = load_member(member, workload, inputs.model, state.store)
        test = tests[member.fold_id]
        spread = prediction_spread(predict(model, test.x), test.targets, limits)
        rows.append(
            {
                "seed": member.seed,
                "fold": member.fold_id,
                "prediction std / target std": spread.ratio,
                "problem": spread.problem,
            }
        )
    bad = [row for row in rows if row["problem"]]
    return result(
        NOT_CONSTANT,
        asset,
        passed=not bad,
        message=f"Seed {bad[0]['seed']} fold {bad[0]['fold']}: {bad[0]['problem']}, prediction std "
        f"/ target std is {bad[0]['prediction std / target std']:.3g} ({len(bad):,} of "
        f"{pluralize(len(rows), 'member')}). Check for dead units, the learning rate and the "
        "scaling of the target."
        if bad
        else f"The predictions of {pluralize(len(rows), 'member')} have a plausible spread.",
        metadata={"members": table(rows)},
    )
