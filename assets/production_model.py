"""Asset ``production_model``: the version in production. A run promotes the requested version."""

import os

import dagster as dg

from sluice.assets.config_schema import VERSION_CONFIG, read_requested_version
from sluice.assets.resources import RECORDS, SluiceState
from sluice.assets.rollout import ROLLOUT
from sluice.assets.spans import spanned
from sluice.base.errors import GateBlocked
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.records import Promotion
from sluice.registry.rollouts import RolloutLedger
from sluice.tracking.registry_mirror import mirror_history
from sluice.tracking.settings import TrackingSettings


def production_model_asset(
    pipeline: str,
    *,
    has_rollout: bool,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
    tracking: TrackingSettings,
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline.

    Args:
        pipeline: Name of the pipeline.
        has_rollout: Whether the pipeline has rollout settings.
        gate_settings_digest: Digest of the settings of gate, guards and suites.
        approval_settings: Approval that a promotion requires.
        tracking: Servers to which the promotion is mirrored.
    """

    @dg.asset(
        key=[pipeline, "production_model"],
        deps=[dg.AssetKey([pipeline, ROLLOUT if has_rollout else "candidate"])],
        config_schema=VERSION_CONFIG,
        io_manager_key=RECORDS,
        group_name=pipeline,
        kinds={"python"},
        description="The version in production. Promotes the requested version only if its "
        "receipts are complete and, where a rollout is configured, its rollout has succeeded. Of "
        "two concurrent promotions only one succeeds.",
    )
    @spanned
    def production_model(
        context: dg.AssetExecutionContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.MaterializeResult[Promotion]:
        version_number = read_requested_version(context)
        with sluice_state.ledger() as ledger:
            promotion = _promote(
                pipeline,
                ledger,
                version_number,
                sluice_state,
                has_rollout=has_rollout,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                run_id=context.run.run_id,
            )
            version = ledger.version(pipeline, version_number)
            mirror_history(
                ledger,
                pipeline,
                tracking,
                store=sluice_state.store,
                folder=sluice_state.home.wandb,
                environ=os.environ,
            )
        context.log.info(promotion.summary)
        return dg.MaterializeResult(
            value=promotion,
            data_version=dg.DataVersion(version.candidate),
            metadata={
                "version": promotion.version,
                "previous version": promotion.previous or "none",
                "candidate": version.candidate,
                "summary": promotion.summary,
                "rollback command": dg.MetadataValue.md(
                    f"`sluice registry rollback {pipeline} --reason '...'`"
                ),
            },
        )

    return production_model


def _promote(
    pipeline: str,
    ledger: RolloutLedger,
    version_number: int,
    state: SluiceState,
    *,
    has_rollout: bool,
    gate_settings_digest: str,
    approval_settings: ApprovalSettings,
    run_id: str,
) -> Promotion:
    """Move the production pointer, after a rollout or on the verdict alone.

    The verdict suffices if no rollout is configured, if no version is in production, or if the
    version is already in production.

    Raises:
        ApprovalMissing: A required approval is missing or has expired.
        GateBlocked: The evidence is insufficient, or the rollout has not succeeded.
    """
    previous_number = ledger.production_number(pipeline)
    if not has_rollout or previous_number in (None, version_number):
        return ledger.promote(
            pipeline,
            version_number,
            expected=previous_number,
            actor="promotion_job",
            reason=f"the promotion gate returned PROMOTE (run {run_id[:8]})",
            store=state.store,
            gate_settings_digest=gate_settings_digest,
            approval_settings=approval_settings,
        )
    rollout = ledger.rollout(pipeline)
    if rollout is None or rollout.version != version_number:
        latest_text = (
            "no rollout was started"
            if rollout is None
            else f"the latest rollout is a rollout of version {rollout.version}"
        )
        raise GateBlocked(
            f"{pipeline} version {version_number} must complete a rollout before its promotion, "
            f"but {latest_text}.",
            fix=f"Start the job {pipeline}_rollout with this version, or promote it manually: "
            f"sluice registry promote {pipeline} {version_number} --reason '...'",
        )
    transition = ledger.finish_rollout(
        pipeline,
        actor="promotion_job",
        store=state.store,
        gate_settings_digest=gate_settings_digest,
        approval_settings=approval_settings,
    )
    if transition.rollout.phase != "promoted":
        raise GateBlocked(transition.reason, fix=transition.remedy)
    return Promotion(
        model=pipeline,
        version=version_number,
        previous=rollout.production_version,
        moved=True,
        revision=rollout.pointer_revision + 1,
        at=transition.at,
    )
