"""Check of the registry's consistency, shown with the production model."""

import dagster as dg

from sluice.assets.resources import SluiceState
from sluice.base.pluralize import pluralize
from sluice.checks.outcomes import blocking_result, blocking_spec
from sluice.registry.signing import SigningKey

CONSISTENT = "registry_is_consistent"

_MAX_LISTED_FINDINGS = 20
"""Maximum number of findings in the metadata of the check."""


def registry_check(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the check with the findings of ``sluice registry verify``; it fails on any finding."""
    asset = [pipeline, "production_model"]

    @dg.multi_asset_check(
        name=f"{pipeline}__registry_check",
        specs=[
            blocking_spec(
                CONSISTENT,
                asset,
                "Artifacts, receipts, lineage, history, production pointer, log and database "
                "triggers of the registry are consistent, as in 'sluice registry verify'. Reads "
                "every artifact of the model.",
            )
        ],
    )
    def registry_check(sluice_state: dg.ResourceParam[SluiceState]) -> dg.AssetCheckResult:
        key = sluice_state.home.registry_key
        with sluice_state.ledger() as ledger:
            if pipeline not in ledger.models():
                return dg.AssetCheckResult(
                    asset_key=dg.AssetKey(asset),
                    check_name=CONSISTENT,
                    passed=False,
                    severity=dg.AssetCheckSeverity.WARN,
                    description="INCONCLUSIVE: the registry has no version of this model.",
                )
            findings = ledger.verify(
                pipeline,
                store=sluice_state.store,
                key=None if key is None else SigningKey.read(key),
            )
        lines = [f"- {finding.problem}: {finding.what} {finding.fix}" for finding in findings]
        return blocking_result(
            CONSISTENT,
            asset,
            passed=not findings,
            message=f"{pluralize(len(findings), 'finding')}. {findings[0].what} {findings[0].fix} "
            "To list all findings: sluice registry verify"
            if findings
            else "No findings.",
            metadata={
                "findings": len(findings),
                "list": dg.MetadataValue.md("\n".join(lines[:_MAX_LISTED_FINDINGS]) or "None."),
            },
        )

    return registry_check
