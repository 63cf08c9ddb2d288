"""Check that shows whether a candidate waits for an approval; the ledger enforces approvals."""

import dagster as dg

from sluice.assets.approval import APPROVAL
from sluice.assets.resources import SluiceState
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.ledger import Ledger
from sluice.registry.records import Registration, Version

APPROVED = "promotion_is_approved"


def approval_check(pipeline: str, approval_settings: ApprovalSettings) -> dg.AssetChecksDefinition:
    """Build the check, which only warns: a candidate that waits does not stop the run."""
    key = dg.AssetKey([pipeline, "candidate"])

    @dg.multi_asset_check(
        name=f"{pipeline}__approval_check",
        specs=[
            dg.AssetCheckSpec(
                APPROVED,
                asset=key,
                # In the approval job, the check runs after the approval.
                additional_deps=[dg.AssetKey([pipeline, APPROVAL])],
                description="A person has approved the promotion of the candidate, with 'sluice "
                f"registry approve' or the asset {APPROVAL}. Until then, the promotion waits.",
            )
        ],
        ins={"candidate": dg.AssetIn(key=key)},
    )
    def approval_check(
        sluice_state: dg.ResourceParam[SluiceState], candidate: Registration
    ) -> dg.AssetCheckResult:
        with sluice_state.ledger() as ledger:
            version = ledger.version(pipeline, candidate.version.number)
            passed, message = describe_approval(ledger, version, approval_settings)
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=APPROVED,
            passed=passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=message,
            metadata={"version": version.number},
        )

    return approval_check


def describe_approval(
    ledger: Ledger, version: Version, approval_settings: ApprovalSettings
) -> tuple[bool, str]:
    """Return False while a version waits for an approval, otherwise True; and the reason."""
    if version.state == "production":
        return True, f"Version {version.number} is in production."
    status = ledger.approval_status(
        version.model, version.number, approval_settings=approval_settings
    )
    if status.problem:
        return False, f"WAITING: {status.problem} {status.remedy}"
    if status.approval is None:
        return True, (
            f"Version {version.number} needs no approval, because its promotion is blocked. The "
            "usual cause is that the verdict of the promotion gate is not PROMOTE."
        )
    return True, status.approval.summary
