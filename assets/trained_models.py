"""Every seed and fold, fitted; what is already finished is not fitted again."""

import time

import dagster as dg

from assets.features import FeatureSet
from assets.metadata import picture, table
from assets.poc_report import poc_subject
from assets.resources import Progress, State, utc_now
from sluice.data.table import load_table
from sluice.pipeline import PipelineSettings
from sluice.receipts import require
from sluice.training.members import TrainedModels


def trained_models_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "trained_models"],
        ins={"features": dg.AssetIn(key=[pipeline.name, "features"])},
        deps=[dg.AssetKey([pipeline.name, "poc_report"])],
        group_name="training",
        kinds={"pytorch"},
        owners=list(pipeline.owners),
        description="One network per seed and fold, each with the weights of its best epoch. "
        "Refuses to start without a passed POC receipt for exactly this data, config and code. "
        "A unit that was killed goes on from its last checkpoint to the same bits.",
    )
    def trained_models(
        context: dg.AssetExecutionContext,
        state: State,
        progress: dg.ResourceParam[Progress],
        features: FeatureSet,
    ) -> dg.Output[TrainedModels]:
        subject = poc_subject(pipeline, features)
        with state.ledger() as ledger:
            require(ledger.find_receipt("poc", subject), gate="poc", subject=subject)
        raise NotImplementedError

    return trained_models
