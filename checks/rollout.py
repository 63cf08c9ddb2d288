"""Check of the rollout: the challenger was promoted."""

import dagster as dg

from sluice.assets.resources import SluiceState
from sluice.assets.rollout import ROLLOUT
from sluice.rollout.state import Rollout

PROMOTED = "challenger_is_promoted"


def rollout_check(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the check, which passes once the challenger is in production."""
    asset = [pipeline, ROLLOUT]

    @dg.asset_check(
        asset=dg.AssetKey(asset),
        name=PROMOTED,
        description="Passes when the challenger was promoted to production and fails when it was "
        "rolled back. Until then, the check warns with INCONCLUSIVE.",
    )
    def challenger_is_promoted(sluice_state: dg.ResourceParam[SluiceState]) -> dg.AssetCheckResult:
        with sluice_state.ledger() as ledger:
            rollout = ledger.rollout(pipeline)
            last_transition = (
                None if rollout is None else ledger.rollout_transitions(rollout.id)[-1]
            )
        if rollout is None or last_transition is None:
            return dg.AssetCheckResult(
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                description="INCONCLUSIVE: no rollout was started yet.",
            )
        return dg.AssetCheckResult(
            passed=rollout.phase == "promoted",
            severity=severity_of(rollout),
            description=describe_outcome(rollout, last_transition.summary),
        )

    return challenger_is_promoted


def evaluation_of_check(
    pipeline_name: str, rollout: Rollout, summary: str
) -> dg.AssetCheckEvaluation:
    """Return the check evaluation that the rollout sensor reports after a transition."""
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey([pipeline_name, ROLLOUT]),
        check_name=PROMOTED,
        passed=rollout.phase == "promoted",
        severity=severity_of(rollout),
        description=describe_outcome(rollout, summary),
    )


def severity_of(rollout: Rollout) -> dg.AssetCheckSeverity:
    """Return ERROR after a rollback; WARN otherwise."""
    is_rolled_back = rollout.phase == "rolled_back"
    return dg.AssetCheckSeverity.ERROR if is_rolled_back else dg.AssetCheckSeverity.WARN


def describe_outcome(rollout: Rollout, summary: str) -> str:
    """Return the description of the check result."""
    return summary if rollout.is_over else f"INCONCLUSIVE so far: {summary}"
