"""What must hold of every fitted member before its losses mean anything."""

import math
from collections.abc import Iterator

import dagster as dg

from assets.resources import State
from checks.outcomes import blocking, result
from sluice.errors import ContractError
from sluice.failfast.event_log import validate_log
from sluice.pipeline import PipelineSettings
from sluice.training.members import TrainedModels

LOG = "event_log_is_valid"
COMPLETE = "every_seed_and_fold_is_there"
FINITE = "every_loss_is_finite"


def trained_models_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the checks (LOG-1)."""
    asset = [pipeline.name, "trained_models"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__trained_models_checks",
        specs=[
            blocking(LOG, asset, "Every event of the merged log has its fields."),
            blocking(COMPLETE, asset, "There is one member per seed and fold."),
            blocking(FINITE, asset, "No member's loss or metric is NaN or infinite."),
        ],
        ins={"trained_models": dg.AssetIn(key=asset)},
    )
    def trained_models_checks(
        state: State, trained_models: TrainedModels
    ) -> Iterator[dg.AssetCheckResult]:
        members = trained_models.members
        yield _log(pipeline, state, trained_models, asset)
        places = {(m.seed, m.fold_id) for m in members}
        folds = {m.fold_id for m in members}
        missing = {(s, f) for s in pipeline.seeds for f in folds} - places
        yield result(
            COMPLETE,
            asset,
            passed=not missing and len(places) == len(members),
            seen=f"{len(members)} members for {len(pipeline.seeds)} seeds and {len(folds)} folds"
            + (
                f"; missing (seed, fold): {sorted(missing)}. Run the training again."
                * bool(missing)
            ),
        )
        bad = [
            f"seed {m.seed} fold {m.fold_id}"
            for m in members
            if not all(map(math.isfinite, (m.train_loss, m.val_loss, *m.test_metrics.values())))
        ]
        yield result(
            FINITE,
            asset,
            passed=not bad,
            seen=f"Not finite: {', '.join(bad)}. Lower the learning rate or look at these rows."
            if bad
            else f"All losses and metrics of {len(members)} members are finite.",
        )

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
