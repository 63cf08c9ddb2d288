"""Every guard of a promotion must pass, and passes only with evidence (STAT-1)."""

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
from tests.sluice.evaluation.loss_samples import make_losses, make_seed_effects, simulate_arms


def make_settings(**parts) -> GuardSettings:
    """Return settings with only these guards."""
    return GuardSettings(**({"deployed_margin_share": None} | parts))


CANDIDATE, REFERENCE = simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0)
VERDICT = compare(CANDIDATE, REFERENCE, GateSettings(), horizon_rows=1)
LEVEL = float(REFERENCE.loss_SN.mean())


def make_metric_table(subject: str, value_SF, *, window="window", name="f1") -> MetricTable:
    value_SF = np.asarray(value_SF, float)
    return MetricTable(
        subject=subject,
        window=window,
        seeds=tuple(range(len(value_SF))) if len(value_SF) > 1 else (),
        fold_rows=(250,) * value_SF.shape[1],
        values={name: tuple(map(tuple, value_SF.tolist()))},
    )


def make_metric_arms(gain: float, *, noise: float = 0.01) -> dict[str, MetricTable]:
    """Return F1 of five seeds on four folds with exactly this mean gain over a rule."""
    reference_F = np.array([0.6, 0.7, 0.8, 0.7])
    variation_F = noise * np.array([1.0, -1.0, 1.0, -1.0])
    return {
        "candidate_metrics": make_metric_table(
            "candidate", reference_F + gain + variation_F + make_seed_effects(5, noise)
        ),
        "reference_metrics": make_metric_table("reference", reference_F[None]),
    }


def run_guard(settings: GuardSettings, **evidence):
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


def make_f1_margin(margin: float, better="higher") -> GuardSettings:
    return make_settings(metrics=(MetricMargin(metric="f1", better=better, margin=margin),))


def shift_losses(gain: float, subject: str, *, seeds: int = 1):
    """Return losses whose mean is exactly ``gain`` below that of the reference, with noise."""
    noise_N = 0.1 * np.random.default_rng(1).normal(size=REFERENCE.num_rows)
    loss_SN = REFERENCE.loss_SN.mean(axis=0) - gain + noise_N - noise_N.mean()
    effect_S1 = make_seed_effects(max(2, seeds), 1e-3)[:seeds]
    return make_losses(loss_SN + effect_S1, subject, num_folds=4, deterministic=seeds == 1)


def test_the_bound_of_a_metric_is_the_t_test_over_folds_if_seeds_agree():
    rng = np.random.default_rng(0)
    gain_F = rng.normal(0.02, 0.01, 6)
    arms = {
        "candidate_metrics": make_metric_table(
            "candidate", 0.5 + gain_F + make_seed_effects(5, 1e-9)
        ),
        "reference_metrics": make_metric_table("reference", np.full((1, 6), 0.5)),
    }
    expected = stats.ttest_1samp(gain_F, 0.0, alternative="greater").confidence_interval(0.95)

    assert run_guard(make_f1_margin(0.1), **arms).observed == pytest.approx(expected.low)


def test_the_bound_of_a_metric_is_welchs_t_test_over_seeds_if_folds_agree():
    rng = np.random.default_rng(0)
    candidate_S, reference_S = rng.normal(0.7, 0.02, 6), rng.normal(0.7, 0.05, 8)
    arms = {
        "candidate_metrics": make_metric_table("candidate", np.repeat(candidate_S[:, None], 4, 1)),
        "reference_metrics": make_metric_table("reference", np.repeat(reference_S[:, None], 4, 1)),
    }
    welch = stats.ttest_ind(candidate_S, reference_S, equal_var=False, alternative="greater")

    assert run_guard(make_f1_margin(0.1), **arms).observed == pytest.approx(
        welch.confidence_interval(0.95).low
    )


@pytest.mark.parametrize(
    ("gain", "margin", "result"),
    [
        (0.0, 0.05, "pass"),
        (-0.03, 0.05, "pass"),
        (-0.1, 0.05, "fail"),
        (0.0, 0.0, "insufficient"),  # equal mean, but not significantly within the margin
        (0.1, 0.0, "pass"),
    ],
)
def test_a_metric_passes_only_if_it_is_significantly_within_its_margin(gain, margin, result):
    outcome = run_guard(make_f1_margin(margin), **make_metric_arms(gain))

    assert outcome.result == result
    assert outcome.passed == (result == "pass")
    assert (outcome.name, outcome.required) == ("metric f1", -margin)


def test_lower_is_better_reverses_the_sign_of_the_gain():
    worse = make_metric_arms(0.1)

    assert run_guard(make_f1_margin(0.05), **worse).result == "pass"
    assert run_guard(make_f1_margin(0.05, better="lower"), **worse).result == "fail"


def test_a_larger_margin_never_turns_a_pass_into_a_failure():
    results = [
        run_guard(make_f1_margin(m), **make_metric_arms(-0.03)).passed
        for m in (0.0, 0.02, 0.04, 0.06, 0.1)
    ]

    assert results == sorted(results)
    assert results[-1]


def test_a_hard_limit_applies_to_the_observed_value():
    arms = make_metric_arms(0.0)  # mean 0.7

    def limit(low=None, high=None):
        limits = make_settings(limits=(HardLimit(metric="f1", minimum=low, maximum=high),))
        return run_guard(limits, **arms)

    def result(low=None, high=None):
        return limit(low, high).result

    assert result(low=0.6) == result(high=0.8) == result(low=0.6, high=0.8) == "pass"
    assert result(low=0.71) == result(high=0.69) == result(low=0.1, high=0.69) == "fail"
    assert limit(low=0.6).reason.endswith("allowed is at least 0.6.")
    assert limit(high=0.8).reason.endswith("allowed is at most 0.8.")
    assert limit(low=0.6, high=0.8).reason.endswith("allowed is 0.6 to 0.8.")


@pytest.mark.parametrize(
    "settings",
    [make_f1_margin(0.5), make_settings(limits=(HardLimit(metric="f1", minimum=-9.0),))],
    ids=["margin", "limit"],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_missing_or_not_finite_never_passes(settings, value):
    metrics = make_metric_arms(0.0)
    value_SF = metrics["candidate_metrics"].values_of("f1")
    value_SF[0, 0] = value

    broken = metrics | {"candidate_metrics": make_metric_table("candidate", value_SF)}
    other = metrics | {"candidate_metrics": make_metric_table("candidate", value_SF, name="other")}
    for evidence in ({}, broken, other):
        assert run_guard(settings, **evidence).result == "insufficient"


@pytest.mark.parametrize(
    ("num_folds", "result"), [(1, "insufficient"), (2, "insufficient"), (3, "pass")]
)
def test_fewer_than_three_folds_are_insufficient_for_a_metric(num_folds, result):
    variation_F = 0.001 * np.arange(num_folds)
    arms = {
        "candidate_metrics": make_metric_table(
            "candidate", 0.9 + variation_F + make_seed_effects(5, 0.01)
        ),
        "reference_metrics": make_metric_table("reference", np.full((1, num_folds), 0.5)),
    }

    assert run_guard(make_f1_margin(0.1), **arms).result == result


@pytest.mark.parametrize(
    ("gain", "result"), [(0.1, "pass"), (0.0, "pass"), (-0.2, "fail"), (-0.05, "insufficient")]
)
def test_the_candidate_must_not_be_worse_than_the_approved_version(gain, result):
    """The candidate's mean loss is ``gain`` below that of the approved version."""
    settings = make_settings(approved="approved", approved_margin_share=0.05 / LEVEL)
    approved = shift_losses(float(VERDICT.gain) - gain, "approved", seeds=5)

    assert run_guard(settings, approved_losses=approved).result == result


def test_the_approved_version_itself_passes_and_other_losses_are_rejected():
    assert run_guard(make_settings(approved="candidate")).passed
    assert run_guard(make_settings(approved="approved")).result == "insufficient"
    with pytest.raises(ContractError, match="must belong to approved, got losses of other"):
        run_guard(make_settings(approved="approved"), approved_losses=shift_losses(0.0, "other"))


@pytest.mark.parametrize(("gain", "result"), [(1.0, "pass"), (0.0, "insufficient"), (-1.0, "fail")])
def test_the_deployed_ensemble_must_pass_separately(gain, result):
    settings = make_settings(deployed_margin_share=0.0)

    outcome = run_guard(settings, deployed_losses=shift_losses(gain, "candidate"))

    assert outcome.result == result
    assert "deployed ensemble" in outcome.name


def test_the_margin_of_the_deployed_ensemble_is_a_share_of_the_reference_loss():
    worse = shift_losses(-0.5, "candidate")

    assert run_guard(make_settings(deployed_margin_share=0.6 / LEVEL), deployed_losses=worse).passed
    assert not run_guard(
        make_settings(deployed_margin_share=0.4 / LEVEL), deployed_losses=worse
    ).passed


def test_a_non_finite_loss_of_the_deployed_ensemble_never_passes():
    deployed = shift_losses(1.0, "candidate")
    deployed.loss_SN[0, 3] = math.nan

    assert run_guard(make_settings(deployed_margin_share=0.5), deployed_losses=deployed).result == (
        "insufficient"
    )
    assert run_guard(make_settings(deployed_margin_share=0.5)).result == "insufficient"


def test_evidence_of_another_window_or_model_is_rejected():
    arms = make_metric_arms(0.0)
    moved = arms["candidate_metrics"].model_copy(update={"window": "other"})
    of_other = arms["candidate_metrics"].model_copy(update={"subject": "other"})

    for metrics in (moved, of_other):
        with pytest.raises(
            ContractError, match=r"candidate's metrics belong .* about window window and model cand"
        ):
            run_guard(make_f1_margin(0.1), **arms | {"candidate_metrics": metrics})
    other_window = make_losses(REFERENCE.loss_SN, "approved", num_folds=4, window="other")
    with pytest.raises(ContractError, match="approved version's losses"):
        run_guard(make_settings(approved="approved"), approved_losses=other_window)


def test_without_guard_settings_no_guard_is_checked():
    evidence = GuardEvidence(candidate=CANDIDATE, reference=REFERENCE)

    assert check_guards(evidence, make_settings(), alpha=0.05, block_length=10) == ()


@pytest.mark.parametrize(
    ("gains", "outcome"),
    [((0.0,), "PROMOTE"), ((-0.2,), "REJECT"), ((math.nan,), "INCONCLUSIVE")],
    ids=["within margin", "below margin", "no evidence"],
)
def test_a_guard_that_did_not_pass_prevents_promotion_and_is_named(gains, outcome):
    arms = make_metric_arms(0.0)
    arms["candidate_metrics"] = make_metric_arms(gains[0])["candidate_metrics"]

    verdict = VERDICT.with_guards([run_guard(make_f1_margin(0.05), **arms)])

    assert VERDICT.outcome == "PROMOTE"
    assert (verdict.outcome, verdict.passed) == (outcome, outcome == "PROMOTE")
    assert ("metric f1" in verdict.reason) == (outcome != "PROMOTE")
    assert len(verdict.guards) == 1


def test_guards_are_stored_in_the_receipt_and_loaded_from_it():
    verdict = VERDICT.with_guards([run_guard(make_f1_margin(0.05))])

    receipt = verdict.receipt({}, decided_at=datetime(2026, 1, 1, tzinfo=UTC))
    loaded = Verdict.model_validate(Receipt.model_validate_json(receipt.model_dump_json()).evidence)

    assert (receipt.outcome, receipt.passed) == ("INCONCLUSIVE", False)
    assert loaded.guards[0].result == "insufficient"
    assert math.isnan(loaded.guards[0].observed)


def test_a_failed_guard_takes_precedence_over_an_insufficient_one():
    broken = run_guard(make_f1_margin(0.05), **make_metric_arms(-0.2))
    unknown = run_guard(make_f1_margin(0.05))

    for order in ([broken, unknown], [unknown, broken]):
        assert VERDICT.with_guards(order).outcome == "REJECT"


def test_passing_guards_alone_do_not_promote():
    worse = compare(REFERENCE, CANDIDATE, GateSettings(), horizon_rows=1)

    verdict = worse.with_guards([run_guard(make_f1_margin(0.05), **make_metric_arms(0.0))])

    assert (verdict.outcome, verdict.reason) == ("REJECT", worse.reason)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": [{"metric": "f1", "better": "higher", "margin": -0.1}]}, "greater than"),
        ({"limits": [{"metric": "f1"}]}, "needs a minimum"),
        ({"limits": [{"metric": "f1", "minimum": 2.0, "maximum": 1.0}]}, "above its maximum"),
        ({"metrics": [{"metric": "f1", "better": "lower", "margin": 0.1}] * 2}, "several for f1"),
        ({"deployed_margin_share": 1.0}, "less than 1"),
    ],
)
def test_invalid_settings_are_rejected(values, message):
    with pytest.raises(ValidationError, match=message):
        GuardSettings.model_validate(values)


def test_a_margin_of_zero_is_displayed_without_a_sign():
    evidence = GuardEvidence(candidate=CANDIDATE, reference=REFERENCE, **make_metric_arms(0.05))
    margin = MetricMargin(metric="f1", better="higher", margin=0.0)

    (outcome,) = check_guards(
        evidence, make_settings(metrics=(margin,)), alpha=0.05, block_length=10
    )

    assert outcome.result == "pass"
    assert outcome.reason.endswith("above 0.")
