"""A significant increase of the mean loss is concept drift (ROLL-3)."""

import math

import numpy as np
import pytest
from scipy import stats

from sluice.base.errors import ContractError
from sluice.config.drift_settings import DriftSettings
from sluice.drift.concept_drift import ConceptDriftReport, evaluate_losses
from tests.sluice.evaluation.loss_samples import ar1

SETTINGS = DriftSettings(alpha=0.05)


def evaluate(reference, current, settings=SETTINGS, horizon_rows=1) -> ConceptDriftReport:
    return evaluate_losses(reference, current, settings, horizon_rows=horizon_rows, window="w")


def losses(seed: int, num_rows: int, *, mean: float = 1.0, rho: float = 0.0) -> np.ndarray:
    return mean + ar1(np.random.default_rng(seed), rho, num_rows)


def test_the_p_value_of_independent_rows_is_that_of_welchs_test():
    reference, current = losses(0, 400), 1.5 * losses(1, 150)

    report = evaluate(reference, current, horizon_rows=0)

    welch = stats.ttest_ind(current, reference, equal_var=False, alternative="greater")
    assert report.p_value == pytest.approx(welch.pvalue)
    assert report.block_length == 1


@pytest.mark.parametrize(
    ("rise", "verdict"), [(0.0, "STABLE"), (0.5, "DRIFT"), (-0.5, "STABLE"), (0.1, "STABLE")]
)
def test_only_a_significant_increase_is_drift(rise, verdict):
    report = evaluate(losses(0, 1000), losses(2, 400, mean=1 + rise))

    assert report.verdict == verdict
    assert report.rise == pytest.approx(rise, abs=0.15)
    assert report.lower_bound < report.rise < report.upper_bound


def test_an_increase_below_min_loss_increase_is_not_drift():
    tolerant = SETTINGS.model_copy(update={"min_loss_increase": 0.6})

    assert evaluate(losses(0, 1000), losses(2, 400, mean=1.5), tolerant).verdict == "STABLE"


def test_dependent_losses_have_wider_bounds():
    bounds = [
        evaluate(losses(0, 1000, rho=rho), losses(1, 400, rho=rho, mean=1.4)) for rho in (0.0, 0.8)
    ]

    margins = [report.rise - report.lower_bound for report in bounds]
    assert margins[1] > 2 * margins[0]


def test_the_false_alarm_rate_on_dependent_losses_is_nominal():
    verdicts = [
        evaluate(losses(2 * number, 800, rho=0.5), losses(2 * number + 1, 400, rho=0.5)).verdict
        for number in range(200)
    ]

    assert verdicts.count("INCONCLUSIVE") == 0
    assert verdicts.count("DRIFT") <= 18  # 99 % quantile of a binomial with 5 % of 200


@pytest.mark.parametrize(
    ("reference", "current", "message", "remedy"),
    [
        (
            losses(0, 99),
            losses(1, 400),
            "The reference has 99 labelled rows, required 100",
            "Train the version again with 1 more held-out row.",
        ),
        (
            losses(0, 400),
            losses(1, 50),
            "The window has 50 labelled rows, required 100",
            "Wait for 50 more labels.",
        ),
        (np.r_[losses(0, 400), np.nan], losses(1, 400), "1 of 401 losses of the reference", ""),
        (losses(0, 400), np.r_[losses(1, 400), np.inf], "1 of 401 losses of the window", ""),
        (np.ones(400), 2 * np.ones(400), "do not vary within either window", ""),
    ],
)
def test_too_little_evidence_is_inconclusive(reference, current, message, remedy):
    report = evaluate(reference, current)

    assert report.verdict == "INCONCLUSIVE"
    assert message in report.reason
    assert report.remedy == remedy or (report.remedy and not remedy)


def test_a_longer_horizon_needs_more_labels():
    report = evaluate(losses(0, 1000), losses(1, 200), horizon_rows=60)

    assert report.verdict == "INCONCLUSIVE"
    assert "required 476" in report.reason  # four blocks of 119


def test_the_effect_of_constant_losses_is_nan():
    assert math.isnan(evaluate(np.ones(400), np.ones(400)).effect)


@pytest.mark.parametrize("shape", [(0,), (2, 100)])
def test_losses_that_are_not_one_vector_are_refused(shape):
    with pytest.raises(ContractError, match=r"must have shape \(rows,\)"):
        evaluate(np.zeros(shape), losses(0, 100))
