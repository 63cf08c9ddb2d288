"""STAT-1, STAT-3: gate, attempt and guards come to one decision."""

import numpy as np
import pytest

from sluice.evaluation.alpha_spending import spent_alpha
from sluice.evaluation.guard_settings import GuardSettings, HardLimit
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.promotion_decision import decide_promotion
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.guard_outcome import GuardOutcome
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import table, two_recipes

GATE = GateSettings()
CANDIDATE, REFERENCE = two_recipes(np.random.default_rng(6), rho=0.0, gain=1.0)


def as_one(losses):
    """The losses of a model that is as good as the mean of its seeds."""
    return table(
        losses.loss_SN.mean(axis=0, keepdims=True), losses.subject, num_folds=4, deterministic=True
    )


def evidence(candidate=CANDIDATE, reference=REFERENCE, **more) -> GuardEvidence:
    return GuardEvidence(
        **{
            "candidate": candidate,
            "reference": reference,
            "deployed_losses": as_one(candidate),
            "reference_deployed_losses": as_one(reference),
        }
        | more
    )


def decide(found, *, gate=GATE, guards=None, **more):
    return decide_promotion(
        found, gate, guards or GuardSettings(), horizon_rows=1, unit="u", **more
    )


def test_a_better_candidate_is_promoted_at_the_alpha_of_the_first_attempt():
    verdict = decide(evidence())

    assert verdict.outcome == "PROMOTE"
    assert (verdict.attempt, verdict.alpha_of_all) == (1, 0.05)
    assert verdict.alpha == pytest.approx(spent_alpha(0.05, 1))
    assert "attempt 1" in verdict.alpha_summary
    (guard,) = verdict.guards
    assert guard.name == "deployed ensemble against the deployed reference"


def test_every_earlier_attempt_on_the_rows_leaves_less_alpha():
    """A gain that one question proves is not proven by the twentieth."""
    rng = np.random.default_rng(11)
    small = two_recipes(rng, rho=0.0, gain=0.03, num_seeds=8, num_rows=2000)
    gate = GateSettings(equivalence_margin_share=0.0)
    first = decide(evidence(*small), gate=gate)
    twentieth = decide(evidence(*small), gate=gate, earlier_verdicts=[first] * 19)

    assert (first.outcome, twentieth.outcome) == ("PROMOTE", "INCONCLUSIVE")
    assert (twentieth.attempt, twentieth.alpha) == (20, pytest.approx(spent_alpha(0.05, 20)))
    assert twentieth.gain == first.gain


def test_a_verdict_with_missing_evidence_spent_no_alpha():
    """It could not have promoted, whatever alpha was."""
    few = decide(evidence(*two_recipes(np.random.default_rng(6), rho=0.0, num_seeds=4)))

    assert (few.outcome, bool(few.lacking)) == ("INCONCLUSIVE", True)
    assert decide(evidence(), earlier_verdicts=[few] * 5).attempt == 1
    assert decide(evidence(), earlier_verdicts=[decide(evidence())] * 5).attempt == 6


def test_attempts_on_other_rows_do_not_count():
    other = decide(evidence(*two_recipes(np.random.default_rng(1), rho=0.0, num_rows=300)))

    assert decide(evidence(), earlier_verdicts=[other]).attempt == 1
    assert (
        decide(evidence(), gate=GateSettings(window_overlap=0.2), earlier_verdicts=[other]).attempt
        == 2
    )


def test_a_worse_artifact_of_a_better_recipe_is_not_promoted():
    """STAT-1: the mean of the seeds may be better, and what would serve not."""
    worse = table(
        REFERENCE.loss_SN.mean(axis=0, keepdims=True)
        + 0.5
        + 0.01 * np.random.default_rng(2).normal(size=(1, REFERENCE.num_rows)),
        CANDIDATE.subject,
        num_folds=4,
        deterministic=True,
    )

    verdict = decide(evidence(deployed_losses=worse))

    assert verdict.outcome == "REJECT"
    assert "'deployed ensemble against the deployed reference' fails" in verdict.reason
    missing = decide(evidence(deployed_losses=None))
    assert missing.outcome == "INCONCLUSIVE"
    assert "were not computed" in missing.reason


@pytest.mark.parametrize(
    ("result", "outcome"),
    [("pass", "PROMOTE"), ("fail", "REJECT"), ("insufficient", "INCONCLUSIVE")],
)
def test_suite_guards_are_combined_with_the_other_guards(result, outcome):
    """DATA-5."""
    suite = GuardOutcome(
        name="suite crashes", result=result, observed=0.0, required=0.0, reason="Seen."
    )

    verdict = decide(evidence(), suite_guards=[suite])

    assert verdict.outcome == outcome
    assert verdict.guards[-1] == suite


def test_a_limit_without_metrics_does_not_pass():
    guards = GuardSettings(limits=(HardLimit(metric="f1", minimum=0.5),))

    assert decide(evidence(), guards=guards).outcome == "INCONCLUSIVE"


def test_a_verdict_from_before_attempts_were_counted_is_read_and_counts():
    """REG-2: a ledger outlives the version of Sluice that wrote it."""
    now = decide(evidence())
    old = now.model_dump(mode="json", exclude={"attempt", "alpha_of_all", "rows"})

    read = Verdict.model_validate(old)

    assert (read.attempt, read.alpha_of_all, read.rows) == (1, now.alpha, None)
    assert decide(evidence(), earlier_verdicts=[read]).attempt == 2
    assert Verdict.model_validate(now.model_dump(mode="json")) == now
