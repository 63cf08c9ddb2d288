"""What must hold of every fitted member before its losses mean anything."""

import math
from collections.abc import Iterator

import dagster as dg

from sluice.assets.best_config import BestConfig, with_best
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.replays import errors_of, shared_errors
from sluice.assets.resources import State
from sluice.assets.trained_models import epochs
from sluice.base.errors import ContractError
from sluice.checks.outcomes import blocking, result
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import load_table
from sluice.evaluation.outputs import predict
from sluice.eventlog.event_log import validate_log
from sluice.failfast.learning.predictions import prediction_spread
from sluice.training.members import TrainedModels
from sluice.training.weights import load_member

LOG = "event_log_is_valid"
COMPLETE = "every_seed_and_fold_is_there"
FINITE = "losses_and_gradients_are_finite"
ALIVE = "predictions_are_alive"
SOUND = "the_tracer_found_no_error"


def trained_models_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the checks (LOG-1, GRAD-1, PRED-1)."""
    asset = [pipeline.name, "trained_models"]
    best_key = [pipeline.name, "best_config"]
    features_key = [pipeline.name, "features"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__trained_models_checks",
        specs=[
            blocking(LOG, asset, "Every event of the merged log has its fields."),
            blocking(COMPLETE, asset, "There is one member per seed and fold."),
            blocking(FINITE, asset, "No loss and no gradient norm is NaN or infinite."),
            blocking(
                ALIVE,
                asset,
                "Predictions on the test rows vary, in proportion to the targets.",
                reads=[features_key, best_key],
            ),
            blocking(SOUND, asset, "No training had a silent fault that its trace shows."),
        ],
        ins={
            "trained_models": dg.AssetIn(key=asset),
            "best_config": dg.AssetIn(key=best_key),
            "features": dg.AssetIn(key=features_key),
        },
    )
    def trained_models_checks(
        sluice_state: dg.ResourceParam[State],
        trained_models: TrainedModels,
        best_config: BestConfig,
        features: FeatureSet,
    ) -> Iterator[dg.AssetCheckResult]:
        yield _log(pipeline, sluice_state, trained_models, asset)
        yield _complete(pipeline, trained_models, features, asset)
        yield _finite(sluice_state, trained_models, asset)
        yield _alive(
            with_best(pipeline, best_config), sluice_state, trained_models, features, asset
        )
        yield _sound(trained_models, asset)

    return trained_models_checks


def _log(
    pipeline: PipelineSettings, state: State, trained: TrainedModels, asset: list[str]
) -> dg.AssetCheckResult:
    try:
        report = validate_log(
            state.store.path(trained.event_log),
            test_metrics=tuple(f"test_{name}" for name in trained.members[0].test_metrics),
            headline=f"mean_{pipeline.loaded_workload.headline_metric}",
        )
    except ContractError as error:
        return result(LOG, asset, passed=False, seen=str(error))
    return result(
        LOG,
        asset,
        passed=report.valid,
        seen=f"{sum(report.counts.values())} events, each with its fields.",
        metadata=dict(report.counts),
    )


def _complete(
    pipeline: PipelineSettings, trained: TrainedModels, features: FeatureSet, asset: list[str]
) -> dg.AssetCheckResult:
    places = {(m.seed, m.fold_id) for m in trained.members}
    wanted = {(seed, fold.fold_id) for seed in pipeline.seeds for fold in features.folds}
    return result(
        COMPLETE,
        asset,
        passed=places == wanted and len(places) == len(trained.members),
        seen=f"{len(trained.members)} members for {len(pipeline.seeds)} seeds and "
        f"{len(features.folds)} folds."
        if places == wanted
        else f"Missing (seed, fold): {sorted(wanted - places)}, not asked for: "
        f"{sorted(places - wanted)}. Materialize trained_models again.",
    )


def _finite(state: State, trained: TrainedModels, asset: list[str]) -> dg.AssetCheckResult:
    columns = ["train_loss", "val_loss", "grad_norm_max"]
    curves = epochs(trained.event_log, state.store)
    numbers = curves[columns].astype(float)
    bad = curves[~numbers.map(math.isfinite).all(axis=1)]
    places = [f"seed {e.seed} fold {e.fold_id} epoch {e.epoch}" for e in bad.itertuples()]
    return result(
        FINITE,
        asset,
        passed=not places and len(curves) > 0,
        seen=f"Not finite: {', '.join(places[:5])} ({len(places)} epochs). Lower the learning "
        "rate, or look for logarithms and divisions of 0 in the loss."
        if places
        else f"All losses and gradient norms of {len(curves)} epochs are finite.",
        metadata={"largest gradient norm": float(numbers["grad_norm_max"].max())},
    )


def _sound(trained: TrainedModels, asset: list[str]) -> dg.AssetCheckResult:
    traced = [member for member in trained.members if member.replay]
    shared = shared_errors(trained.members)
    told = [sentence for member in trained.members for sentence in errors_of(member)]
    if shared:
        seen = (
            f"In most trainings: {', '.join(shared)}. {told[0]} Its replay, linked at "
            "trained_models, shows it; where all this is meant, set training.trace to false."
        )
    elif not traced:
        seen = "No training was traced: set training.trace to true to have them watched."
    elif told:
        seen = f"In {len(told)} of {len(traced)} trainings, which is no habit: {told[0]}"
    else:
        questions = sum(len(member.diagnoses) for member in traced)
        seen = f"{len(traced)} trainings were traced: no error, {questions} to look at."
    return result(SOUND, asset, passed=not shared, seen=seen, metadata={"traced": len(traced)})


def _alive(
    pipeline: PipelineSettings,
    state: State,
    trained: TrainedModels,
    features: FeatureSet,
    asset: list[str],
) -> dg.AssetCheckResult:
    workload = pipeline.loaded_workload
    frame = load_table(features.table, state.store)
    tests = {fold.fold_id: workload.examples(frame, fold.test) for fold in features.folds}
    rows = []
    for member in trained.members:
        model = load_member(member, workload, pipeline.model, state.store)
        test = tests[member.fold_id]
        spread = prediction_spread(predict(model, test.x), test.y, pipeline.poc.predictions)
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
        ALIVE,
        asset,
        passed=not bad,
        seen=f"Seed {bad[0]['seed']} fold {bad[0]['fold']}: {bad[0]['problem']}, predictions vary "
        f"{bad[0]['prediction std / target std']:.3g} times as much as the targets "
        f"({len(bad)} of {len(rows)} members). Look at dead units, the learning rate and the "
        "scaling of the target."
        if bad
        else f"Predictions of all {len(rows)} members vary in proportion to the targets.",
        metadata={"members": table(rows)},
    )
