"""Check of the search result before hours of training with it."""

import math
from collections.abc import Iterator

import dagster as dg

from sluice.assets.best_config import BestConfig
from sluice.assets.metadata import table
from sluice.assets.resources import SluiceState
from sluice.base.pluralize import pluralize
from sluice.checks.outcomes import blocking_result, blocking_spec, failing_with_messages
from sluice.tuning.study_summary import StudySummary

FINITE_LOSS = "best_trial_has_finite_loss"


def best_config_checks(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the checks of ``best_config``."""
    asset = [pipeline, "best_config"]

    @dg.multi_asset_check(
        name=f"{pipeline}__best_config_checks",
        specs=[
            blocking_spec(
                FINITE_LOSS, asset, "The best trial of the search has a finite validation loss."
            ),
        ],
        ins={"best_config": dg.AssetIn(key=asset)},
    )
    @failing_with_messages
    def best_config_checks(
        sluice_state: dg.ResourceParam[SluiceState], best_config: BestConfig
    ) -> Iterator[dg.AssetCheckResult]:
        if best_config.study is None:
            yield blocking_result(
                FINITE_LOSS, asset, passed=True, message="No search is configured."
            )
            return
        study = StudySummary.model_validate_json(sluice_state.store.get(best_config.study))
        yield _check_finite_loss(study, asset)

    return best_config_checks


def _check_finite_loss(study: StudySummary, asset: list[str]) -> dg.AssetCheckResult:
    trials = study.result.trials
    finite_trials = [
        t for t in trials if t.state in ("finished", "pruned") and math.isfinite(t.loss)
    ]
    winner = study.result.winner
    failed_trials = [trial for trial in trials if trial.state == "failed"]
    return blocking_result(
        FINITE_LOSS,
        asset,
        passed=winner in finite_trials,
        message=f"{len(finite_trials)} of {pluralize(len(trials), 'trial')} ended with a finite "
        f"loss; the best trial has a loss of {winner.loss:.4g}."
        if winner in finite_trials
        else f"No trial of {len(trials)} ended with a finite loss. First trial: {trials[0].reason}",
        metadata={
            "failed trials": table([{"trial": t.id, "reason": t.reason} for t in failed_trials])
            if failed_trials
            else "none",
        },
    )
