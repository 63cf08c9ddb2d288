"""Whether all that an evaluation reads can be opened, before the hours that it comes after."""

import dagster as dg

from sluice.assets.evaluation_inputs import open_inputs
from sluice.assets.features import FeatureSet
from sluice.assets.resources import State
from sluice.base.errors import SluiceError
from sluice.checks.outcomes import result
from sluice.config.pipeline import PipelineSettings

OPENS = "what_evaluation_reads_can_be_opened"


def evaluation_inputs_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check; the assets that train ask again, so it is no lock."""
    asset = [pipeline.name, "poc_report"]

    @dg.asset_check(
        name=OPENS,
        asset=dg.AssetKey(asset),
        additional_ins={"features": dg.AssetIn(key=[pipeline.name, "features"])},
        blocking=True,
        description="The version in production, the one that guards.approved names and the "
        "regression suites exist in this home, have the right digest and load.",
    )
    def what_evaluation_reads_can_be_opened(
        sluice_state: dg.ResourceParam[State], features: FeatureSet
    ) -> dg.AssetCheckResult:
        try:
            opened = open_inputs(pipeline, sluice_state, data=features.table.digest)
        except SluiceError as error:
            return result(OPENS, asset, passed=False, seen=str(error))
        said = f"Opened: {', '.join(opened)}." if opened else "The baseline needs no artifact."
        return result(OPENS, asset, passed=True, seen=said)

    return what_evaluation_reads_can_be_opened
