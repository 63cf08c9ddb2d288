"""Asset ``approval``: a person's approval of a promotion, given in the launchpad."""

import dagster as dg

from sluice.assets.config_schema import APPROVAL_CONFIG, read_requested_version
from sluice.assets.resources import RECORDS, SluiceState
from sluice.assets.spans import spanned
from sluice.base.receipts import Receipt
from sluice.registry.approval_settings import ApprovalSettings

APPROVAL = "approval"


def approval_asset(pipeline: str, approval_settings: ApprovalSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, APPROVAL],
        deps=[dg.AssetKey([pipeline, "candidate"])],
        config_schema=APPROVAL_CONFIG,
        io_manager_key=RECORDS,
        group_name=pipeline,
        kinds={"sqlalchemy"},
        description="Approval of a version whose verdict is PROMOTE, like 'sluice registry "
        "approve'. Enter version, actor and reason in the launchpad. The promotion sensor then "
        "continues. If actors have signing keys, approve in a terminal instead, with your key.",
    )
    @spanned
    def approval(
        context: dg.AssetExecutionContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.MaterializeResult[Receipt]:
        version_number = read_requested_version(context)
        run_config = context.op_execution_context.op_config
        with sluice_state.ledger() as ledger:
            receipt = ledger.approve(
                pipeline, version_number, actor=run_config["actor"], reason=run_config["reason"]
            )
            status = ledger.approval_status(
                pipeline, version_number, approval_settings=approval_settings
            )
        summary = status.problem if status.approval is None else status.approval.summary
        context.log.info(summary)
        return dg.MaterializeResult(
            value=receipt,
            metadata={
                "version": version_number,
                "summary": summary,
                "receipt": receipt.digest,
                "candidate": receipt.subject["candidate"],
            },
        )

    return approval
