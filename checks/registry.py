"""What the registry says about itself, as a check of what is in production."""

import dagster as dg

from sluice.assets.resources import State
from sluice.base.pluralize import counted
from sluice.checks.outcomes import blocking, result
from sluice.config.pipeline import PipelineSettings
from sluice.registry.signing import SigningKey

SOUND = "registry_holds_together"

_MAX_NAMED = 20
"""Findings in the check's table; the count names all."""


def registry_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check of what ``sluice registry verify`` finds; a finding fails its run."""
    asset = [pipeline.name, "production_model"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__registry_check",
        specs=[
            blocking(
                SOUND,
                asset,
                "Artifacts, receipts, lineage, history, pointer, log and triggers of the registry "
                "agree, as in 'sluice registry verify'. Reads every artifact of the model.",
            )
        ],
    )
    def registry_check(sluice_state: dg.ResourceParam[State]) -> dg.AssetCheckResult:
        key = sluice_state.home.registry_key
        with sluice_state.ledger() as ledger:
            if pipeline.name not in ledger.models():
                return dg.AssetCheckResult(
                    asset_key=dg.AssetKey(asset),
                    check_name=SOUND,
                    passed=False,
                    severity=dg.AssetCheckSeverity.WARN,
                    description="INCONCLUSIVE: the registry has no version of this model yet.",
                )
            findings = ledger.verify(
                pipeline.name,
                store=sluice_state.store,
                key=None if key is None else SigningKey.read(key),
            )
        lines = [f"- {finding.problem}: {finding.what} {finding.fix}" for finding in findings]
        return result(
            SOUND,
            asset,
            passed=not findings,
            seen=f"{counted(len(findings), 'finding')}. {findings[0].what} {findings[0].fix} "
            "To list all findings: sluice registry verify"
            if findings
            else "Nothing wrong found.",
            metadata={
                "findings": len(findings),
                "list": dg.MetadataValue.md("\n".join(lines[:_MAX_NAMED]) or "None."),
            },
        )

    return registry_check
