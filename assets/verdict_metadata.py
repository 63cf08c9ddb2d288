"""What a reviewer looks at first, on the page of the verdict and on that of the candidate."""

import dagster as dg

from sluice.assets.metadata import picture, table
from sluice.evaluation.gate_plots import difficulty_png, power_png
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.plots import fold_gains_png
from sluice.verdicts.verdict import Verdict


def guard_table(verdict: Verdict) -> dg.MetadataValue:
    """Return every guard with what it found."""
    return table(
        [{"guard": guard.name, "": guard.result, "why": guard.reason} for guard in verdict.guards]
    )


def verdict_pictures(
    verdict: Verdict, evidence: GuardEvidence, *, advised_power: float
) -> dict[str, dg.MetadataValue]:
    """Return the gain per fold, where the candidate loses, and what could have been found."""
    by_difficulty = difficulty_png(evidence.candidate, evidence.reference, unit=verdict.unit)
    return {
        "per fold": picture(fold_gains_png(verdict), "gain per fold with its interval"),
        "where it loses": picture(by_difficulty, "gain on easy and on hard rows"),
        "power": picture(
            power_png(verdict, power=advised_power), "chance of a promotion by true gain"
        ),
    }
