"""Guard table and plots of a verdict, shown with the verdict and with the candidate."""

import dagster as dg

from sluice.assets.metadata import picture, table
from sluice.evaluation.gate_plots import difficulty_png, power_png
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.plots import fold_gains_png
from sluice.verdicts.verdict import Verdict


def guard_table(verdict: Verdict) -> dg.MetadataValue:
    """Return a table of all guards with their results."""
    return table(
        [
            {"guard": guard.name, "result": guard.result, "reason": guard.reason}
            for guard in verdict.guards
        ]
    )


def verdict_pictures(
    verdict: Verdict, evidence: GuardEvidence, *, advised_power: float
) -> dict[str, dg.MetadataValue]:
    """Return plots: gain per fold, gain by difficulty of the rows, and power of the comparison."""
    by_difficulty = difficulty_png(evidence.candidate, evidence.reference, unit=verdict.unit)
    return {
        "gain per fold": picture(fold_gains_png(verdict), "gain per fold with its interval"),
        "gain by difficulty": picture(by_difficulty, "gain on easy and on hard rows"),
        "power": picture(
            power_png(verdict, power=advised_power), "probability of a promotion by true gain"
        ),
    }
