"""What is in production: a pointer in the registry, moved on the evidence recorded there."""

import os

import dagster as dg
from pydantic import Field

from assets.resources import State
from assets.traced import traced
from sluice.errors import GateBlocked
from sluice.pipeline import PipelineSettings
from sluice.registry.ledger import Ledger
from sluice.registry.records import Promotion
from sluice.tracking.registry_mirror import mirror_history


class PromotionConfig(dg.Config):
    """Which version the job is asked to promote."""

    version: int = Field(ge=1, description="Version number in the registry.")


def production_model_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "production_model"],
        deps=[dg.AssetKey([pipeline.name, "candidate"])],
        group_name=f"{pipeline.name}_promotion",
        kinds={"python"},
        owners=list(pipeline.owners),
        description="The version in production. Reads the receipts of the version it is asked to "
        "promote and refuses without them; two promotions at once cannot both win.",
    )
    @traced
    def production_model(
        context: dg.AssetExecutionContext, state: State, config: PromotionConfig
    ) -> dg.MaterializeResult[Promotion]:
        with state.ledger() as ledger:
            _require_present_rules(pipeline, ledger, config.version)
            promotion = ledger.promote(
                pipeline.name,
                config.version,
                expected=ledger.production_number(pipeline.name),
                actor="promotion_job",
                reason=f"the gate said PROMOTE (run {context.run.run_id[:8]})",
                store=state.store,
            )
            version = ledger.version(pipeline.name, config.version)
            mirror_history(
                ledger,
                pipeline.name,
                pipeline.tracking,
                store=state.store,
                folder=state.home.wandb,
                environ=os.environ,
            )
        context.log.info(promotion.summary)
        return dg.MaterializeResult(
            value=promotion,
            data_version=dg.DataVersion(version.candidate),
            metadata={
                "version": promotion.version,
                "before": promotion.previous or "none",
                "candidate": version.candidate,
                "summary": promotion.summary,
                "roll back": dg.MetadataValue.md(
                    f"`sluice registry rollback {pipeline.name} --reason '...'`"
                ),
            },
        )

    return production_model


def _require_present_rules(pipeline: PipelineSettings, ledger: Ledger, number: int) -> None:
    """Refuse a version that was judged under other settings of gate, guards or suites than now."""
    judged = [
        linked.receipt.subject.get("rules")
        for linked in ledger.receipts(pipeline.name, number)
        if linked.receipt.gate == "promotion"
    ]
    if judged and judged[-1] != pipeline.promotion_rules:
        raise GateBlocked(
            f"{pipeline.name} version {number} was judged under other settings of gate, guards or "
            "suites than the pipeline has now.",
            cause="The file was changed after the decision, which stands for its window.",
            fix="Run the pipeline on a newer window, or put the settings back.",
        )
