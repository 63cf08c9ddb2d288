"""The whole decision on a candidate: the gate, with what its attempt may spend, and the guards.

Everything that speaks for or against a promotion comes together here, and nowhere else.
"""

from collections.abc import Mapping, Sequence

from sluice.evaluation.budget import count_attempt, for_attempt
from sluice.evaluation.comparison import compare
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.guards import GuardEvidence, check_guards
from sluice.evaluation.metric_changes import find_worse_metrics
from sluice.evaluation.settings import GateSettings
from sluice.metrics.directions import Direction
from sluice.verdicts.guard_outcome import GuardOutcome
from sluice.verdicts.row_sketch import RowSketch
from sluice.verdicts.verdict import Verdict


def judge(
    evidence: GuardEvidence,
    gate: GateSettings,
    guards: GuardSettings,
    *,
    suite_guards: Sequence[GuardOutcome] = (),
    earlier: Sequence[Verdict] = (),
    directions: Mapping[str, Direction] | None = None,
    horizon_rows: int,
    unit: str,
) -> Verdict:
    """Compare, then ask every guard; only a proven gain that no guard speaks against is a PROMOTE.

    Args:
        evidence: Losses of both arms, and what the guards look at, all of one window.
        gate: Thresholds; ``alpha`` is for all attempts on the window together.
        guards: Which guards, and their margins.
        suite_guards: What the regression suites that must hold said.
        directions: Which way metrics of the workload's own improve, by name.
        earlier: Every verdict on the model before this one, whatever it compared.
        horizon_rows: How many rows ahead a target looks [rows]; 0 for independent rows.
        unit: Unit of the losses, for people.

    Raises:
        ContractError: Something was scored on other rows or on another window.
    """
    candidate = evidence.candidate
    rows = RowSketch.of(candidate.label_N)
    attempt = count_attempt(
        rows,
        # What lacked evidence could not promote, so it spent nothing.
        [verdict.rows for verdict in earlier if not verdict.lacking],
        overlap=gate.window_overlap,
    )
    spent = for_attempt(gate, attempt)
    verdict = compare(candidate, evidence.reference, spent, horizon_rows=horizon_rows, unit=unit)
    outcomes = check_guards(evidence, guards, alpha=spent.alpha, block_length=verdict.block_length)
    worse = find_worse_metrics(
        evidence.candidate_metrics, evidence.reference_metrics, declared=directions or {}
    )
    return (
        verdict.model_copy(update={"attempt": attempt, "alpha_of_all": gate.alpha})
        .with_guards([*outcomes, *suite_guards])
        .with_worse_metrics(worse)
    )
