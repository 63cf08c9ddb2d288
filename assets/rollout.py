"""The rollout of a version: real traffic has the last word before production moves (ROLL-1)."""

import dagster as dg

from sluice.assets.config_schema import VERSION_CONFIG, requested_version
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.resources import RECORDS, State
from sluice.assets.traced import traced
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import load_table
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.start import start_delivery

ROLLOUT = "rollout"


def rollout_asset(pipeline: PipelineSettings, settings: RolloutSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, ROLLOUT],
        ins={"features": dg.AssetIn(key=[pipeline.name, "features"])},
        deps=[dg.AssetKey([pipeline.name, "candidate"])],
        config_schema=VERSION_CONFIG,
        io_manager_key=RECORDS,
        group_name=f"{pipeline.name}_promotion",
        kinds={"sqlalchemy"},
        owners=list(pipeline.owners),
        description="A candidate on its way into production: the rollout sensor raises its share "
        "of the traffic step by step, and takes it back by itself when the traffic speaks against "
        "it. Its transitions are observations of this asset.",
    )
    @traced
    def rollout(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[State],
        features: FeatureSet,
    ) -> dg.MaterializeResult[Transition]:
        with sluice_state.ledger() as ledger:
            transition, agreement = start_delivery(
                ledger,
                pipeline.name,
                requested_version(context),
                settings,
                frame=load_table(features.table, sluice_state.store),
                folds=features.folds,
                store=sluice_state.store,
                actor="rollout_job",
                reason=f"The gate said PROMOTE (run {context.run.run_id[:8]}).",
                rules=pipeline.promotion_rules,
            )
        context.log.info(transition.summary)
        return dg.MaterializeResult(
            value=transition,
            metadata={
                **rollout_metadata(transition),
                "steps": table(steps_rows(transition.rollout)),
                "apart on held-out rows": agreement.difference,
                "follow": dg.MetadataValue.md(
                    f"`sluice rollout watch {pipeline.name}`; stop it: "
                    f"`sluice rollout abort {pipeline.name} --reason '...'`"
                ),
            },
        )

    return rollout


def rollout_metadata(transition: Transition) -> dict[str, dg.MetadataValue | str | int | float]:
    """Return what a page of Dagster shows of one transition."""
    rollout = transition.rollout
    shown: dict[str, dg.MetadataValue | str | int | float] = {
        "summary": transition.summary,
        "version": rollout.version,
        "replaces": rollout.production_version,
        "phase": rollout.phase,
        "step": f"{rollout.step + 1} of {len(rollout.settings.steps)}",
        "share of the traffic": rollout.users_share,
        "by": transition.actor,
        "rollout": rollout.id,
    }
    if transition.window is not None:
        window = transition.window
        arms = {"challenger": window.challenger, "production": window.production}
        shown["requests"] = table([{"arm": arm, **c.model_dump()} for arm, c in arms.items()])
    if transition.guards:
        shown["guards"] = table([reading.model_dump() for reading in transition.guards])
    if transition.quality is not None:
        shown["on labelled pairs"] = transition.quality
    if transition.drift is not None:
        shown["apart, times as on held-out rows"] = transition.drift.distance
    return shown


def steps_rows(rollout: Rollout) -> list[dict[str, object]]:
    """Return one row a step: what share, and what it is asked to show."""
    settings = rollout.settings
    return [
        {
            "step": number,
            "share": step.share,
            "copies": "yes" if step.shadow else "no",
            "at least": f"{settings.min_step_s:g} s and {settings.min_requests} requests",
        }
        for number, step in enumerate(settings.steps, start=1)
    ]
