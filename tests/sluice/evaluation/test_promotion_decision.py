"""Gate, attempts and guards are combined into one decision (STAT-1, STAT-3)."""

import numpy as np
import pytest

from sluice.evaluation.alpha_spending import spent_alpha
from sluice.evaluation.guard_settings import GuardSettings, HardLimit
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.promotion_decision import decide_promotion
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.guard_outcome import GuardOutcome
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms

GATE = GateSettings()
CANDIDATE, REFERENCE = simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0)


def average_seeds(losses):
    """Return the mean losses over seeds as those of a deterministic model."""
    return make_losses(
        losses.loss_SN.mean(axis=0, keepdims=True), losses.subject, num_folds=4, deterministic=True
    )


def make_evidence(candidate=CANDIDATE, reference=REFERENCE, **changes) -> GuardEvidence:
    return GuardEvidence(
        **{
            "candidate": candidate,
            "reference": reference,
            "deployed_losses": average_seeds(candidate),
            "reference_deployed_losses": average_seeds(reference),
        }
        | changes
    )


def decide(evidence, *, gate=GATE, guards=None, **changes):
    return decide_promotion(
        evidence, gate, guards or GuardSettings(), horizon_rows=1, unit="u", **changes
    )


def test_a_better_candidate_is_promoted_with_the_alpha_of_the_first_attempt():
    verdict = decide(make_evidence())

    assert verdict.outcome == "PROMOTE"
    assert (verdict.attempt, verdict.alpha_of_all) == (1, 0.05)
    assert verdict.alpha == pytest.approx(spent_alpha(0.05, 1))
    assert "attempt 1" in verdict.alpha_summary
    (guard,) = verdict.guards
    assert guard.name == "deployed ensemble against the deployed reference"


def test_earlier_attempts_on_the_same_rows_lower_alpha():
    """A gain that is significant in the first attempt is not significant in the twentieth."""
    rng = np.random.default_rng(11)
    small_gain = simulate_arms(rng, rho=0.0, gain=0.03, num_seeds=8, num_rows=2000)
    gate = GateSettings(equivalence_margin_share=0.0)
    first = decide(make_evidence(*small_gain), gate=gate)
    twentieth = decide(make_evidence(*small_gain), gate=gate, earlier_verdicts=[first] * 19)

    assert (first.outcome, twentieth.outcome) == ("PROMOTE", "INCONCLUSIVE")
    assert (twentieth.attempt, twentieth.alpha) == (20, pytest.approx(spent_alpha(0.05, 20)))
    assert twentieth.gain == first.gain


def test_a_verdict_with_missing_evidence_is_not_counted_as_attempt():
    """It could not have promoted with any alpha."""
    too_few = decide(make_evidence(*simulate_arms(np.random.default_rng(6), rho=0.0, num_seeds=4)))

    assert (too_few.outcome, bool(too_few.lacking)) == ("INCONCLUSIVE", True)
    assert decide(make_evidence(), earlier_verdicts=[too_few] * 5).attempt == 1
    assert decide(make_evidence(), earlier_verdicts=[decide(make_evidence())] * 5).attempt == 6


def test_attempts_on_other_rows_are_not_counted():
    other = decide(make_evidence(*simulate_arms(np.random.default_rng(1), rho=0.0, num_rows=300)))

    assert decide(make_evidence(), earlier_verdicts=[other]).attempt == 1
    assert (
        decide(
            make_evidence(), gate=GateSettings(window_overlap=0.2), earlier_verdicts=[other]
        ).attempt
        == 2
    )


def test_a_worse_deployed_ensemble_is_not_promoted():
    """The mean of the seeds may be better although the deployed ensemble is worse (STAT-1)."""
    worse = make_losses(
        REFERENCE.loss_SN.mean(axis=0, keepdims=True)
        + 0.5
        + 0.01 * np.random.default_rng(2).normal(size=(1, REFERENCE.num_rows)),
        CANDIDATE.subject,
        num_folds=4,
        deterministic=True,
    )

    verdict = decide(make_evidence(deployed_losses=worse))

    assert verdict.outcome == "REJECT"
    assert "'deployed ensemble against the deployed reference' fails" in verdict.reason
    missing = decide(make_evidence(deployed_losses=None))
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

    verdict = decide(make_evidence(), suite_guards=[suite])

    assert verdict.outcome == outcome
    assert verdict.guards[-1] == suite


def test_a_limit_without_metrics_is_inconclusive():
    guards = GuardSettings(limits=(HardLimit(metric="f1", minimum=0.5),))

    assert decide(make_evidence(), guards=guards).outcome == "INCONCLUSIVE"


def test_a_stored_verdict_without_attempt_is_read_and_counted():
    """A ledger may contain verdicts of older versions of Sluice (REG-2)."""
    verdict = decide(make_evidence())
    old = verdict.model_dump(mode="json", exclude={"attempt", "alpha_of_all", "rows"})

    loaded = Verdict.model_validate(old)

    assert (loaded.attempt, loaded.alpha_of_all, loaded.rows) == (1, verdict.alpha, None)
    assert decide(make_evidence(), earlier_verdicts=[loaded]).attempt == 2
    assert Verdict.model_validate(verdict.model_dump(mode="json")) == verdict
