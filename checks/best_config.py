"""What must hold of a search before hours are spent on its winner."""

import math
from collections.abc import Iterator

import dagster as dg

from sluice.assets.best_config import BestConfig
from sluice.assets.metadata import table
from sluice.assets.resources import State
from sluice.checks.outcomes import blocking, result
from sluice.config.pipeline import PipelineSettings
from sluice.tuning.study import Study

FINISHED = "a_trial_finished_with_a_finite_loss"


def best_config_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the checks (TUNE-4)."""
    asset = [pipeline.name, "best_config"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__best_config_checks",
        specs=[
            blocking(FINISHED, asset, "At least one trial ended with a finite validation loss."),
        ],
        ins={"best_config": dg.AssetIn(key=asset)},
    )
    def best_config_checks(
        sluice_state: dg.ResourceParam[State], best_config: BestConfig
    ) -> Iterator[dg.AssetCheckResult]:
        if best_config.study is None:
            yield result(FINISHED, asset, passed=True, seen="No search was asked for.")
            return
        study = Study.model_validate_json(sluice_state.store.get(best_config.study))
        yield _finished(study, asset)

    return best_config_checks


def _finished(study: Study, asset: list[str]) -> dg.AssetCheckResult:
    trials = study.result.trials
    finite = [t for t in trials if t.state in ("finished", "pruned") and math.isfinite(t.loss)]
    winner = study.result.winner
    failed = [trial for trial in trials if trial.state == "failed"]
    return result(
        FINISHED,
        asset,
        passed=winner in finite,
        seen=f"{len(finite)} of {len(trials)} trials ended with a finite loss; the best has "
        f"{winner.loss:.4g}."
        if winner in finite
        else f"None of {len(trials)} trials ended with a finite loss. {trials[0].reason}",
        metadata={
            "failed": table([{"trial": t.id, "why": t.reason} for t in failed])
            if failed
            else "none",
        },
    )
