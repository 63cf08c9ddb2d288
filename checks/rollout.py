"""What the traffic said of a rollout, as a check (ROLL-2)."""

import dagster as dg

from sluice.assets.resources import State
from sluice.assets.rollout import ROLLOUT
from sluice.config.pipeline import PipelineSettings
from sluice.rollout.state import Rollout

HELD = "every_step_held"


def rollout_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check: it passes only once the challenger is production."""
    asset = [pipeline.name, ROLLOUT]

    @dg.asset_check(
        asset=dg.AssetKey(asset),
        name=HELD,
        description="Passes when the challenger became production, fails when it was rolled back; "
        "a rollout under way has shown nothing yet, and says so.",
    )
    def every_step_held(sluice_state: dg.ResourceParam[State]) -> dg.AssetCheckResult:
        with sluice_state.ledger() as ledger:
            rollout = ledger.rollout(pipeline.name)
            last = None if rollout is None else ledger.rollout_transitions(rollout.id)[-1]
        if rollout is None or last is None:
            return dg.AssetCheckResult(
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                description="INCONCLUSIVE: there was no rollout yet.",
            )
        return dg.AssetCheckResult(
            passed=rollout.phase == "promoted",
            severity=severity(rollout),
            description=outcome(rollout, last.summary),
        )

    return every_step_held


def evaluation(pipeline_name: str, rollout: Rollout, summary: str) -> dg.AssetCheckEvaluation:
    """Return what the sensor tells of the check when the rollout moved by itself."""
    return dg.AssetCheckEvaluation(
        asset_key=dg.AssetKey([pipeline_name, ROLLOUT]),
        check_name=HELD,
        passed=rollout.phase == "promoted",
        severity=severity(rollout),
        description=outcome(rollout, summary),
    )


def severity(rollout: Rollout) -> dg.AssetCheckSeverity:
    """ERROR for harm that was proven; a rollout that is under way only warns."""
    failed = rollout.phase == "rolled_back"
    return dg.AssetCheckSeverity.ERROR if failed else dg.AssetCheckSeverity.WARN


def outcome(rollout: Rollout, summary: str) -> str:
    """Say what is known."""
    return summary if rollout.is_over else f"INCONCLUSIVE so far: {summary}"
