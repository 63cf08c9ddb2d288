"""Check, before hours of training, that the evaluation can open all its inputs."""

import dagster as dg

from sluice.assets.evaluation_inputs import PlannedEvaluation, open_inputs
from sluice.assets.features import FeatureSet
from sluice.assets.resources import SluiceState
from sluice.base.errors import SluiceError
from sluice.checks.outcomes import blocking_result
from sluice.config.resolved import TrainingInputs

READABLE = "evaluation_inputs_are_readable"


def evaluation_inputs_check(
    pipeline: str, inputs: TrainingInputs, planned_evaluation: PlannedEvaluation
) -> dg.AssetChecksDefinition:
    """Build the check. The training assets repeat it, so skipping this check is safe."""
    asset = [pipeline, "poc_report"]

    @dg.asset_check(
        name=READABLE,
        asset=dg.AssetKey(asset),
        additional_ins={"features": dg.AssetIn(key=[pipeline, "features"])},
        blocking=True,
        description="The version in production, the version of guards.approved, the regression "
        "suites and imported predictions of the baseline exist in this home, have the right "
        "digests and can be loaded.",
    )
    def evaluation_inputs_are_readable(
        sluice_state: dg.ResourceParam[SluiceState], features: FeatureSet
    ) -> dg.AssetCheckResult:
        try:
            descriptions = open_inputs(
                pipeline, inputs, planned_evaluation, sluice_state, features=features
            )
        except SluiceError as error:
            return blocking_result(READABLE, asset, passed=False, message=str(error))
        message = (
            f"Opened: {', '.join(descriptions)}."
            if descriptions
            else "The evaluation will read no stored version, suite or imported predictions."
        )
        return blocking_result(READABLE, asset, passed=True, message=message)

    return evaluation_inputs_are_readable
