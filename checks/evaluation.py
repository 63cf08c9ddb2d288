"""Both arms must stand on the same rows, or the comparison is of two different questions."""

import dagster as dg

from assets.evaluation import Evaluation, evaluated_losses
from assets.resources import State
from checks.outcomes import blocking, result
from sluice.errors import ContractError
from sluice.pipeline import PipelineSettings

PAIRED = "both_arms_stand_on_the_same_rows"


def evaluation_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check (STAT-2)."""
    asset = [pipeline.name, "evaluation"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__evaluation_checks",
        specs=[blocking(PAIRED, asset, "Candidate and reference were scored on the same rows.")],
        ins={"evaluation": dg.AssetIn(key=asset)},
    )
    def evaluation_checks(state: State, evaluation: Evaluation) -> dg.AssetCheckResult:
        candidate, reference = evaluated_losses(evaluation, state.store)
        try:
            reference.aligned_to(candidate)
        except ContractError as error:
            return result(PAIRED, asset, passed=False, seen=str(error))
        return result(
            PAIRED,
            asset,
            passed=True,
            seen=f"Both arms have the same {candidate.num_rows} test rows; "
            f"{max(1, len(candidate.seeds))} against {max(1, len(reference.seeds))} loss sets.",
            metadata={"rows": candidate.num_rows},
        )

    return evaluation_checks
