"""Checks of the trained networks before their losses are compared."""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import pandas as pd

from sluice.assets.best_config import BestConfig, apply_best_config
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.replays import shared_errors, trace_errors
from sluice.assets.resources import SluiceState
from sluice.assets.trained_models import read_epochs
from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.checks.outcomes import blocking_result, blocking_spec, failing_with_messages
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
TRACE_WITHOUT_ERRORS = "tracer_reports_no_errors"

_MAX_LARGE_OUTPUTS = 256
"""Maximum number of test rows whose outputs are in memory at the same time, if ``keep_outputs`` of
the workload is False."""


def trained_models_checks(
    pipeline: str, inputs: SearchInputs, predictions: PredictionSettings, *, seeds: Sequence[int]
) -> dg.AssetChecksDefinition:
    """Build the checks of ``trained_models``."""
    asset = [pipeline, "trained_models"]
    best_config_key = [pipeline, "best_config"]
    features_key = [pipeline, "features"]

    @dg.multi_asset_check(
        name=f"{pipeline}__trained_models_checks",
        specs=[
            blocking_spec(
                LOG, asset, "Every event of the merged event log has the required fields."
            ),
            blocking_spec(
                ALL_TRAINED, asset, "There is exactly one trained network for each seed and fold."
            ),
            blocking_spec(FINITE, asset, "All losses and gradient norms are finite."),
            blocking_spec(
                NOT_CONSTANT,
                asset,
                "The standard deviation of the predictions is plausible for the targets: the "
                "networks do not predict a constant.",
                reads=[features_key, best_config_key],
            ),
            blocking_spec(
                TRACE_WITHOUT_ERRORS,
                asset,
                "The training tracer reports no fault as an error in more than half of the "
                "traced trainings.",
            ),
        ],
        ins={
            "trained_models": dg.AssetIn(key=asset),
            "best_config": dg.AssetIn(key=best_config_key),
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
        yield _check_event_log(
            inputs.base.workload.headline_metric, sluice_state, trained_models, asset
        )
        yield _check_all_trained(seeds, trained_models, features, asset)
        yield _check_finite(sluice_state, trained_models, asset)
        yield _check_prediction_spread(
            apply_best_config(inputs, best_config),
            predictions,
            sluice_state,
            trained_models,
            features,
            asset,
        )
        yield _check_trace(trained_models, asset)

    return trained_models_checks


def _check_event_log(
    headline: str, state: SluiceState, trained_models: TrainedModels, asset: list[str]
) -> dg.AssetCheckResult:
    try:
        report = validate_log(
            state.store.path(trained_models.event_log),
            test_metrics=tuple(f"test_{name}" for name in trained_models.members[0].test_metrics),
            headline=f"mean_{headline}",
        )
    except ContractError as error:
        return blocking_result(LOG, asset, passed=False, message=str(error))
    return blocking_result(
        LOG,
        asset,
        passed=report.valid,
        message=f"{sum(report.counts.values())} events have all required fields.",
        metadata=dict(report.counts),
    )


def _check_all_trained(
    seeds: Sequence[int], trained_models: TrainedModels, features: FeatureSet, asset: list[str]
) -> dg.AssetCheckResult:
    trained_runs = Counter((m.seed, m.fold_id) for m in trained_models.members)
    required_runs = {(seed, fold.fold_id) for seed in seeds for fold in features.folds}
    missing_runs = sorted(required_runs - trained_runs.keys())
    unexpected_runs = sorted(trained_runs.keys() - required_runs)
    repeated_runs = sorted(run for run, count in trained_runs.items() if count > 1)
    passed = not (missing_runs or unexpected_runs or repeated_runs)
    return blocking_result(
        ALL_TRAINED,
        asset,
        passed=passed,
        message=f"{pluralize(len(trained_models.members), 'member')} for "
        f"{pluralize(len(seeds), 'seed')} and {pluralize(len(features.folds), 'fold')}."
        if passed
        else f"Missing (seed, fold): {missing_runs}, unexpected: {unexpected_runs}, "
        f"repeated: {repeated_runs}. "
        "Materialize trained_models again.",
    )


def _check_finite(
    state: SluiceState, trained_models: TrainedModels, asset: list[str]
) -> dg.AssetCheckResult:
    """Check the numbers of each epoch. A number that the event log lacks counts as non-finite."""
    curves = read_epochs(trained_models.event_log, state.store)
    numbers = curves.reindex(columns=["train_loss", "val_loss", "grad_norm_max"])
    numbers = numbers.apply(pd.to_numeric, errors="coerce").astype(float)
    non_finite_epochs = curves[~numbers.map(math.isfinite).all(axis=1)]
    epoch_texts = [_describe_epoch(epoch) for epoch in non_finite_epochs.to_dict("records")]
    if epoch_texts:
        message = (
            f"Losses or gradient norms are not finite, or missing: {', '.join(epoch_texts[:5])} "
            f"({pluralize(len(epoch_texts), 'epoch')}). Lower the learning rate, or check the loss "
            "for log(0) and division by 0."
        )
    elif curves.empty:
        message = "The event log has no finished epoch. Materialize trained_models again."
    else:
        message = f"All losses and gradient norms of {pluralize(len(curves), 'epoch')} are finite."
    return blocking_result(
        FINITE,
        asset,
        passed=not epoch_texts and not curves.empty,
        message=message,
        metadata={"largest gradient norm": float(numbers["grad_norm_max"].max())},
    )


def _describe_epoch(epoch: Mapping[Hashable, Any]) -> str:
    """Return seed, fold and number of an epoch, with '?' for a missing field."""
    fields = (("seed", "seed"), ("fold", "fold_id"), ("epoch", "epoch"))
    values = [(label, epoch.get(name)) for label, name in fields]
    return " ".join(f"{label} {'?' if pd.isna(v) else f'{v:g}'}" for label, v in values)


def _check_trace(trained_models: TrainedModels, asset: list[str]) -> dg.AssetCheckResult:
    traced_members = [member for member in trained_models.members if member.replay]
    shared_faults = shared_errors(trained_models.members)
    errors = [error for member in trained_models.members for error in trace_errors(member)]
    if shared_faults:
        first_shared_error = next(
            error
            for member in traced_members
            for error in trace_errors(member, faults=shared_faults)
        )
        message = (
            f"Faults in most traced trainings: {', '.join(shared_faults)}. {first_shared_error} "
            "See the trace replay in the metadata of trained_models. If all these faults are "
            "intended, set training.trace to false."
        )
    elif not traced_members:
        message = "No training was traced. Set training.trace to true to enable the tracer."
    elif errors:
        message = (
            f"{pluralize(len(errors), 'error')} in "
            f"{pluralize(len(traced_members), 'traced training')}, but no fault in more than half "
            f"of the trainings. The first error: {errors[0]}"
        )
    else:
        num_findings = sum(len(member.diagnoses) for member in traced_members)
        message = (
            f"{pluralize(len(traced_members), 'training')} traced: no errors, "
            f"{pluralize(num_findings, 'other finding')}."
        )
    return blocking_result(
        TRACE_WITHOUT_ERRORS,
        asset,
        passed=not shared_faults,
        message=message,
        metadata={"traced": len(traced_members)},
    )


def _check_prediction_spread(
    inputs: TrainingInputs,
    limits: PredictionSettings,
    state: SluiceState,
    trained_models: TrainedModels,
    features: FeatureSet,
    asset: list[str],
) -> dg.AssetCheckResult:
    workload = inputs.workload
    frame = load_table(features.table, state.store)
    test_examples = {fold.fold_id: workload.examples(frame, fold.test) for fold in features.folds}
    if not workload.keep_outputs:
        test_examples = {
            fold_id: sample_evenly(examples, _MAX_LARGE_OUTPUTS)
            for fold_id, examples in test_examples.items()
        }
    rows = []
    for member in trained_models.members:
        model = load_member(member, workload, inputs.model, state.store)
        examples = test_examples[member.fold_id]
        spread = prediction_spread(predict(model, examples.x), examples.targets, limits)
        rows.append(
            {
                "seed": member.seed,
                "fold": member.fold_id,
                "prediction std / target std": spread.ratio,
                "problem": spread.problem,
            }
        )
    problems = [row for row in rows if row["problem"]]
    return blocking_result(
        NOT_CONSTANT,
        asset,
        passed=not problems,
        message=f"Seed {problems[0]['seed']} fold {problems[0]['fold']}: {problems[0]['problem']}, "
        f"prediction std / target std is {problems[0]['prediction std / target std']:.3g} "
        f"({len(problems):,} of {pluralize(len(rows), 'member')}). Check for dead units, the "
        "learning rate and the scaling of the target."
        if problems
        else f"The predictions of {pluralize(len(rows), 'member')} have a plausible spread.",
        metadata={"members": table(rows)},
    )
