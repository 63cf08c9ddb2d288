"""Decides on a promotion from all evidence: the comparison at this attempt's alpha, and guards.

This is the only place where the evidence for and against a promotion is combined.
"""

from collections.abc import Mapping, Sequence

from sluice.evaluation.alpha_spending import count_attempt, settings_for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.guards import GuardEvidence, check_guards
from sluice.evaluation.metric_changes import find_worse_metrics
from sluice.evaluation.settings import GateSettings
from sluice.metrics.directions import Direction
from sluice.verdicts.guard_outcome import GuardOutcome
from sluice.verdicts.row_sketch import RowSketch
from sluice.verdicts.verdict import Verdict


def decide_promotion(
    evidence: GuardEvidence,
    gate: GateSettings,
    guards: GuardSettings,
    *,
    suite_guards: Sequence[GuardOutcome] = (),
    earlier_verdicts: Sequence[Verdict] = (),
    directions: Mapping[str, Direction] | None = None,
    horizon_rows: int,
    unit: str,
) -> Verdict:
    """Compare the arms and check all guards; PROMOTE requires a significant gain and all guards.

    Args:
        evidence: Losses of both arms and the inputs of the guards, all of the same window.
        gate: Settings of the gate; ``alpha`` is shared by all attempts on the window.
        guards: Guards and their margins.
        suite_guards: Outcomes of the guards on regression suites.
        directions: Directions in which the workload's own metrics improve, by name.
        earlier_verdicts: All earlier verdicts on the model, with any candidate and reference.
        horizon_rows: Forecast horizon of the target; 0 for independent rows [rows].
        unit: Unit of the losses, for messages.

    Raises:
        ContractError: Some evidence belongs to other rows or to another window.
    """
    candidate = evidence.candidate
    rows = RowSketch.of(candidate.label_N)
    attempt = count_attempt(
        rows,
        # A verdict with missing evidence could not promote, so it spent no alpha.
        [verdict.rows for verdict in earlier_verdicts if not verdict.lacking],
        overlap=gate.window_overlap,
    )
    attempt_settings = settings_for_attempt(gate, attempt)
    verdict = compare(
        candidate, evidence.reference, attempt_settings, horizon_rows=horizon_rows, unit=unit
    )
    guard_outcomes = check_guards(
        evidence, guards, alpha=attempt_settings.alpha, block_length=verdict.block_length
    )
    worse_metrics = find_worse_metrics(
        evidence.candidate_metrics, evidence.reference_metrics, directions=directions or {}
    )
    return (
        verdict.model_copy(update={"attempt": attempt, "alpha_of_all": gate.alpha})
        .with_guards([*guard_outcomes, *suite_guards])
        .with_worse_metrics(worse_metrics)
    )
