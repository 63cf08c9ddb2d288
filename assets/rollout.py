"""Asset ``rollout``: shifts live traffic to a candidate step by step before its promotion."""

import dagster as dg

from sluice.assets.config_schema import VERSION_CONFIG, read_requested_version
from sluice.assets.features import FeatureSet
from sluice.assets.metadata import table
from sluice.assets.resources import RECORDS, SluiceState
from sluice.assets.spans import spanned
from sluice.data.table import load_table
from sluice.registry.approval_settings import ApprovalSettings
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, Transition
from sluice.rollout_control.start import start_rollout

ROLLOUT = "rollout"


def rollout_asset(
    pipeline: str,
    settings: RolloutSettings,
    *,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline.

    Args:
        pipeline: Name of the pipeline.
        settings: Settings of the rollout.
        gate_settings_digest: Digest of the settings of gate, guards and suites.
        approval_settings: Approval that the start of a rollout requires.
    """

    @dg.asset(
        key=[pipeline, ROLLOUT],
        ins={"features": dg.AssetIn(key=[pipeline, "features"])},
        deps=[dg.AssetKey([pipeline, "candidate"])],
        config_schema=VERSION_CONFIG,
        io_manager_key=RECORDS,
        group_name=pipeline,
        kinds={"sqlalchemy"},
        description="Rollout of a candidate. The rollout sensor raises its share of the traffic "
        "step by step, and rolls it back automatically when a guard detects harm. Each "
        "transition is recorded as an observation of this asset.",
    )
    @spanned
    def rollout(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        features: FeatureSet,
    ) -> dg.MaterializeResult[Transition]:
        with sluice_state.ledger() as ledger:
            transition, agreement = start_rollout(
                ledger,
                pipeline,
                read_requested_version(context),
                settings,
                frame=load_table(features.table, sluice_state.store),
                folds=features.folds,
                store=sluice_state.store,
                actor="rollout_job",
                reason=f"The promotion gate returned PROMOTE (run {context.run.run_id[:8]}).",
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
            )
        context.log.info(transition.summary)
        return dg.MaterializeResult(
            value=transition,
            metadata={
                # The overview of the asset shows these values until the next rollout.
                "as of": "the start of the rollout; each later transition is an event of this "
                "asset, with a link to the page of the rollout",
                **rollout_metadata(transition),
                "steps": table(step_rows(transition.rollout)),
                "difference on held-out rows": agreement.difference,
                "commands": dg.MetadataValue.md(
                    f"Follow: `sluice rollout watch {pipeline}`. Abort: "
                    f"`sluice rollout abort {pipeline} --reason '...'`"
                ),
            },
        )

    return rollout


def rollout_metadata(transition: Transition) -> dict[str, dg.MetadataValue | str | int | float]:
    """Return the metadata of one transition for Dagster's UI."""
    rollout = transition.rollout
    metadata: dict[str, dg.MetadataValue | str | int | float] = {
        "summary": transition.summary,
        "version": rollout.version,
        "replaces": rollout.production_version,
        "phase": rollout.phase,
        "step": f"{rollout.step + 1} of {len(rollout.settings.steps)}",
        "share of the traffic": rollout.users_share,
        "actor": transition.actor,
        "rollout": rollout.id,
    }
    if transition.window is not None:
        window = transition.window
        arms = {"challenger": window.challenger, "production": window.production}
        metadata["requests"] = table([{"arm": arm, **c.model_dump()} for arm, c in arms.items()])
    if transition.guards:
        metadata["guards"] = table([reading.model_dump() for reading in transition.guards])
    if transition.quality is not None:
        metadata["live quality"] = transition.quality
    if transition.drift is not None:
        metadata["prediction difference / difference on held-out rows"] = transition.drift.distance
    return metadata


def step_rows(rollout: Rollout) -> list[dict[str, object]]:
    """Return one row for each step: its traffic share, and its minimum duration and requests."""
    settings = rollout.settings
    return [
        {
            "step": number,
            "share": step.share,
            "shadow": "yes" if step.is_shadowed else "no",
            "minimum": f"{settings.min_step_s:g} s and {settings.min_requests} requests",
        }
        for number, step in enumerate(settings.steps, start=1)
    ]
