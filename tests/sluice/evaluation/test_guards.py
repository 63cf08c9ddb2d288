"""STAT-1: the guards beside the gate; each must pass, and only proof passes."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from sluice.base.errors import ContractError
from sluice.base.receipts import Receipt
from sluice.evaluation.comparison import compare
from sluice.evaluation.guard_settings import GuardSettings, HardLimit, MetricMargin
from sluice.evaluation.guards import GuardEvidence, check_guards
from sluice.evaluation.metric_table import MetricTable
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.verdict import Verdict
from tests.sluice.evaluation.loss_samples import spread, table, two_recipes


def asked(**parts) -> GuardSettings:
    """Return settings with these guards and no other."""
    return GuardSettings(**({"deployed_margin_share": None} | parts))


CANDIDATE, REFERENCE = two_recipes(np.random.default_rng(6), rho=0.0, gain=1.0)
VERDICT = compare(CANDIDATE, REFERENCE, GateSettings(), horizon_rows=1)
LEVEL = float(REFERENCE.loss_SN.mean())


def metric_table(subject: str, value_SF, *, window="window", name="f1") -> MetricTable:
    value_SF = np.asarray(value_SF, float)
    return MetricTable(
        subject=subject,
        window=window,
        seeds=tuple(range(len(value_SF))) if len(value_SF) > 1 else (),
        fold_rows=(250,) * value_SF.shape[1],
        values={name: tuple(map(tuple, value_SF.tolist()))},
    )


def metric_arms(gain: float, *, size: float = 0.01) -> dict[str, MetricTable]:
    """F1 of five seeds on four folds; the gain over a rule has exactly this mean."""
    own_F = np.array([0.6, 0.7, 0.8, 0.7])
    wobble_F = size * np.array([1.0, -1.0, 1.0, -1.0])
    return {
        "candidate_metrics": metric_table("candidate", own_F + gain + wobble_F + spread(5, size)),
        "reference_metrics": metric_table("reference", own_F[None]),
    }


def guard(settings: GuardSettings, **evidence):
    (outcome,) = check_guards(
        GuardEvidence(
            candidate=CANDIDATE,
            reference=REFERENCE,
            reference_deployed_losses=REFERENCE,
            **evidence,
        ),
        settings,
        alpha=0.05,
        block_length=10,
    )
    return outcome


def f1_margin(margin: float, better="higher") -> GuardSettings:
    return asked(metrics=(MetricMargin(metric="f1", better=better, margin=margin),))


def shifted(gain: float, subject: str, *, seeds: int = 1):
    """Losses that lie exactly ``gain`` below the reference's mean on every row, with noise."""
    noise_N = 0.1 * np.random.default_rng(1).normal(size=REFERENCE.num_rows)
    loss_SN = REFERENCE.loss_SN.mean(axis=0) - gain + noise_N - noise_N.mean()
    return table(loss_SN + spread(max(2, seeds), 1e-3)[:seeds], subject, num_folds=4,
                 deterministic=seeds == 1)  # fmt: skip


def test_a_metrics_bound_is_students_over_folds_when_seeds_agree():
    rng = np.random.default_rng(0)
    gain_F = rng.normal(0.02, 0.01, 6)
    arms = {
        "candidate_metrics": metric_table("candidate", 0.5 + gain_F + spread(5, 1e-9)),
        "reference_metrics": metric_table("reference", np.full((1, 6), 0.5)),
    }
    textbook = stats.ttest_1samp(gain_F, 0.0, alternative="greater").confidence_interval(0.95)

    assert guard(f1_margin(0.1), **arms).observed == pytest.approx(textbook.low)


def test_a_metrics_bound_is_welchs_over_seeds_when_folds_agree():
    rng = np.random.default_rng(0)
    ours_S, theirs_S = rng.normal(0.7, 0.02, 6), rng.normal(0.7, 0.05, 8)
    arms = {
        "candidate_metrics": metric_table("candidate", np.repeat(ours_S[:, None], 4, 1)),
        "reference_metrics": metric_table("reference", np.repeat(theirs_S[:, None], 4, 1)),
    }
    welch = stats.ttest_ind(ours_S, theirs_S, equal_var=False, alternative="greater")

    assert guard(f1_margin(0.1), **arms).observed == pytest.approx(
        welch.confidence_interval(0.95).low
    )


@pytest.mark.parametrize(
    ("gain", "margin", "result"),
    [
        (0.0, 0.05, "pass"),
        (-0.03, 0.05, "pass"),
        (-0.1, 0.05, "fail"),
        (0.0, 0.0, "insufficient"),  # no worse on the mean, and nothing is proven
        (0.1, 0.0, "pass"),
    ],
)
def test_a_metric_must_be_proven_to_keep_its_margin(gain, margin, result):
    found = guard(f1_margin(margin), **metric_arms(gain))

    assert found.result == result
    assert found.passed == (result == "pass")
    assert (found.name, found.required) == ("metric f1", -margin)


def test_lower_is_better_turns_the_sign():
    worse = metric_arms(0.1)

    assert guard(f1_margin(0.05), **worse).result == "pass"
    assert guard(f1_margin(0.05, better="lower"), **worse).result == "fail"


def test_a_larger_margin_never_turns_a_pass_into_something_else():
    results = [
        guard(f1_margin(m), **metric_arms(-0.03)).passed for m in (0.0, 0.02, 0.04, 0.06, 0.1)
    ]

    assert results == sorted(results)
    assert results[-1]


def test_a_hard_limit_applies_to_the_observed_value():
    arms = metric_arms(0.0)  # mean 0.7

    def limit(low=None, high=None):
        limits = asked(limits=(HardLimit(metric="f1", minimum=low, maximum=high),))
        return guard(limits, **arms)

    def result(low=None, high=None):
        return limit(low, high).result

    assert result(low=0.6) == result(high=0.8) == result(low=0.6, high=0.8) == "pass"
    assert result(low=0.71) == result(high=0.69) == result(low=0.1, high=0.69) == "fail"
    assert limit(low=0.6).reason.endswith("allowed is at least 0.6.")
    assert limit(high=0.8).reason.endswith("allowed is at most 0.8.")
    assert limit(low=0.6, high=0.8).reason.endswith("allowed is 0.6 to 0.8.")


@pytest.mark.parametrize(
    "settings",
    [f1_margin(0.5), asked(limits=(HardLimit(metric="f1", minimum=-9.0),))],
    ids=["margin", "limit"],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_metric_that_is_missing_or_not_finite_never_passes(settings, bad):
    good = metric_arms(0.0)
    value_SF = good["candidate_metrics"].values_of("f1")
    value_SF[0, 0] = bad

    broken = good | {"candidate_metrics": metric_table("candidate", value_SF)}
    other = good | {"candidate_metrics": metric_table("candidate", value_SF, name="other")}
    for evidence in ({}, broken, other):
        assert guard(settings, **evidence).result == "insufficient"


@pytest.mark.parametrize(
    ("num_folds", "result"), [(1, "insufficient"), (2, "insufficient"), (3, "pass")]
)
def test_fewer_than_three_folds_cannot_prove_a_metric(num_folds, result):
    wobble_F = 0.001 * np.arange(num_folds)
    arms = {
        "candidate_metrics": metric_table("candidate", 0.9 + wobble_F + spread(5, 0.01)),
        "reference_metrics": metric_table("reference", np.full((1, num_folds), 0.5)),
    }

    assert guard(f1_margin(0.1), **arms).result == result


@pytest.mark.parametrize(
    ("gain", "result"), [(0.1, "pass"), (0.0, "pass"), (-0.2, "fail"), (-0.05, "insufficient")]
)
def test_the_approved_version_must_not_be_lost_against(gain, result):
    """The candidate is 1.0 below the reference; the approved one is shifted against it."""
    settings = asked(approved="approved", approved_margin_share=0.05 / LEVEL)
    approved = shifted(float(VERDICT.gain) - gain, "approved", seeds=5)

    assert guard(settings, approved_losses=approved).result == result


def test_the_approved_version_itself_passes_and_another_is_refused():
    assert guard(asked(approved="candidate")).passed
    assert guard(asked(approved="approved")).result == "insufficient"
    with pytest.raises(ContractError, match="must be those of approved, got those of other"):
        guard(asked(approved="approved"), approved_losses=shifted(0.0, "other"))


@pytest.mark.parametrize(("gain", "result"), [(1.0, "pass"), (0.0, "insufficient"), (-1.0, "fail")])
def test_the_deployed_ensemble_must_pass_separately(gain, result):
    settings = asked(deployed_margin_share=0.0)

    found = guard(settings, deployed_losses=shifted(gain, "candidate"))

    assert found.result == result
    assert "deployed ensemble" in found.name


def test_the_margin_of_what_is_deployed_is_a_share_of_the_references_loss():
    worse = shifted(-0.5, "candidate")

    assert guard(asked(deployed_margin_share=0.6 / LEVEL), deployed_losses=worse).passed
    assert not guard(asked(deployed_margin_share=0.4 / LEVEL), deployed_losses=worse).passed


def test_one_bad_loss_of_what_is_deployed_never_passes():
    deployed = shifted(1.0, "candidate")
    deployed.loss_SN[0, 3] = math.nan

    assert guard(asked(deployed_margin_share=0.5), deployed_losses=deployed).result == (
        "insufficient"
    )
    assert guard(asked(deployed_margin_share=0.5)).result == "insufficient"


def test_evidence_of_another_window_or_model_is_refused():
    arms = metric_arms(0.0)
    moved = arms["candidate_metrics"].model_copy(update={"window": "other"})
    of_other = arms["candidate_metrics"].model_copy(update={"subject": "other"})

    for metrics in (moved, of_other):
        with pytest.raises(
            ContractError, match=r"candidate's metrics belong .* about window window and model cand"
        ):
            guard(f1_margin(0.1), **arms | {"candidate_metrics": metrics})
    late = table(REFERENCE.loss_SN, "approved", num_folds=4, window="other")
    with pytest.raises(ContractError, match="approved version's losses"):
        guard(asked(approved="approved"), approved_losses=late)


def test_without_guard_settings_no_guard_is_checked():
    evidence = GuardEvidence(candidate=CANDIDATE, reference=REFERENCE)

    assert check_guards(evidence, asked(), alpha=0.05, block_length=10) == ()


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [((0.0,), "PROMOTE"), ((-0.2,), "REJECT"), ((math.nan,), "INCONCLUSIVE")],
    ids=["holds", "broken", "no evidence"],
)
def test_a_guard_that_did_not_pass_ends_a_promotion_by_name(gains, outcome):
    arms = metric_arms(0.0)
    arms["candidate_metrics"] = metric_arms(gains[0])["candidate_metrics"]

    verdict = VERDICT.with_guards([guard(f1_margin(0.05), **arms)])

    assert VERDICT.outcome == "PROMOTE"
    assert (verdict.outcome, verdict.passed) == (outcome, outcome == "PROMOTE")
    assert ("metric f1" in verdict.reason) == (outcome != "PROMOTE")
    assert len(verdict.guards) == 1


def test_guards_are_in_the_receipt_and_come_out_of_it_again():
    verdict = VERDICT.with_guards([guard(f1_margin(0.05))])

    receipt = verdict.receipt({}, decided_at=datetime(2026, 1, 1, tzinfo=UTC))
    again = Verdict.model_validate(Receipt.model_validate_json(receipt.model_dump_json()).evidence)

    assert (receipt.outcome, receipt.passed) == ("INCONCLUSIVE", False)
    assert again.guards[0].result == "insufficient"
    assert math.isnan(again.guards[0].observed)


def test_a_failed_guard_takes_precedence_over_an_insufficient_one():
    broken = guard(f1_margin(0.05), **metric_arms(-0.2))
    unknown = guard(f1_margin(0.05))

    for order in ([broken, unknown], [unknown, broken]):
        assert VERDICT.with_guards(order).outcome == "REJECT"


def test_passing_guards_alone_do_not_promote():
    worse = compare(REFERENCE, CANDIDATE, GateSettings(), horizon_rows=1)

    found = worse.with_guards([guard(f1_margin(0.05), **metric_arms(0.0))])

    assert (found.outcome, found.reason) == ("REJECT", worse.reason)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"metrics": [{"metric": "f1", "better": "higher", "margin": -0.1}]}, "greater than"),
        ({"limits": [{"metric": "f1"}]}, "needs a minimum"),
        ({"limits": [{"metric": "f1", "minimum": 2.0, "maximum": 1.0}]}, "above its maximum"),
        ({"metrics": [{"metric": "f1", "better": "lower", "margin": 0.1}] * 2}, "several for f1"),
        ({"deployed_margin_share": 1.0}, "less than 1"),
    ],
)
def test_invalid_settings_are_rejected(values, said):
    with pytest.raises(ValidationError, match=said):
        GuardSettings.model_validate(values)


def test_a_margin_of_zero_is_displayed_without_a_sign():
    evidence = GuardEvidence(candidate=CANDIDATE, reference=REFERENCE, **metric_arms(0.05))
    guard = MetricMargin(metric="f1", better="higher", margin=0.0)

    (outcome,) = check_guards(evidence, asked(metrics=(guard,)), alpha=0.05, block_length=10)

    assert outcome.result == "pass"
    assert outcome.reason.endswith("above 0.")
