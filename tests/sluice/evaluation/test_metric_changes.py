"""A verdict reports metrics that became worse, with or without a guard."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.guards import GuardEvidence
from sluice.evaluation.metric_changes import find_worse_metrics
from sluice.evaluation.metric_table import MetricTable
from sluice.evaluation.promotion_decision import decide_promotion
from sluice.evaluation.settings import GateSettings
from sluice.verdicts.metric_change import MetricDeterioration, describe_deteriorations
from tests.sluice.evaluation.loss_samples import make_losses, simulate_arms

FOLDS = 4


def make_metrics(seeds=(0, 1, 2, 3, 4), *, rng=None, subject="c", window="w" * 64, **means):
    """Return metrics with the given means on equal folds; ``rng`` adds noise."""
    shape = (max(1, len(seeds)), FOLDS)
    noise = np.zeros(shape) if rng is None else rng.normal(0, 0.1, shape)
    noise -= noise.mean()
    return MetricTable(
        subject=subject,
        window=window,
        seeds=seeds,
        fold_rows=(100,) * FOLDS,
        values={name: tuple(map(tuple, mean + noise)) for name, mean in means.items()},
    )


def find_worse(candidate, reference, **declared):
    return find_worse_metrics(candidate, reference, directions=declared)


def test_worse_metrics_are_described_with_both_values_and_an_interval():
    rng = np.random.default_rng(1)
    candidate = make_metrics(rng=rng, sharpe=0.45, sortino=0.61, mae=0.5)
    reference = make_metrics((), subject="r", sharpe=0.52, sortino=0.73, mae=0.9)

    sharpe, sortino = find_worse(candidate, reference)

    assert (sharpe.metric, sortino.metric) == ("sharpe", "sortino")
    assert sharpe.candidate == pytest.approx(0.45)
    assert sharpe.reference == pytest.approx(0.52)
    assert sharpe.low < -0.07 < sharpe.high
    description = describe_deteriorations((sharpe, sortino))
    assert description.startswith(
        "Worse than the reference: sharpe 0.45 against 0.52 (-0.07, 95 % interv"
    )


@pytest.mark.parametrize(
    ("candidate", "reference", "text"),
    [
        (0.99978, 0.9999, "r2 0.9998 against 0.9999 (-0.00012)"),
        (0.5, 0.61, "r2 0.5 against 0.61 (-0.11)"),
        (1.0, 1.0, "r2 1 against 1 (+0)"),
    ],
)
def test_displayed_values_have_enough_digits_to_differ(candidate, reference, text):
    change = MetricDeterioration(
        metric="r2", candidate=candidate, reference=reference, low=np.nan, high=np.nan
    )

    assert str(change) == text


def test_the_interval_has_the_two_way_variance_of_seeds_and_folds():
    rng = np.random.default_rng(3)
    candidate = make_metrics(rng=rng, sharpe=0.0)
    reference = make_metrics((), subject="r", sharpe=1.0)
    value_SF = candidate.values_of("sharpe")
    seeds = value_SF.mean(axis=1).var(ddof=1) / 5
    folds = value_SF.mean(axis=0).var(ddof=1) / FOLDS
    freedom = (seeds + folds) ** 2 / (seeds**2 / 4 + folds**2 / 3)

    (change,) = find_worse(candidate, reference)

    half_width = student.ppf(0.975, freedom) * np.sqrt(seeds + folds)
    assert (change.low, change.high) == pytest.approx((-1 - half_width, -1 + half_width), rel=0.05)


@pytest.mark.parametrize(
    ("name", "candidate", "reference", "declared", "is_worse"),
    [
        ("sharpe", 0.4, 0.5, {}, True),
        ("sharpe", 0.5, 0.4, {}, False),
        ("sharpe", 0.5, 0.5, {}, False),
        ("rmse", 0.5, 0.4, {}, True),
        ("ndcg@10", 0.4, 0.5, {}, True),
        ("max_drawdown", 0.5, 0.4, {}, True),
        ("turnover", 0.5, 0.4, {}, False),  # unknown direction
        ("turnover", 0.5, 0.4, {"turnover": "lower"}, True),
        ("sharpe", 0.5, 0.4, {"sharpe": "lower"}, True),
        ("loss", 0.5, 0.4, {}, False),  # compared by the gate
        ("sharpe", np.nan, 0.4, {}, False),
    ],
)
def test_a_metric_is_worse_according_to_its_direction(
    name, candidate, reference, declared, is_worse
):
    changes = find_worse(
        make_metrics(**{name: candidate}),
        make_metrics((), subject="r", **{name: reference}),
        **declared,
    )

    assert bool(changes) == is_worse


def test_metrics_of_one_arm_only_give_no_changes():
    assert find_worse(make_metrics(sharpe=0.1), make_metrics((), subject="r", sortino=0.2)) == ()
    assert find_worse(None, make_metrics((), sharpe=1.0)) == ()


def test_too_few_folds_give_no_interval_but_an_explanation():
    def make_two_folds(mean, seeds):
        return MetricTable(
            subject="c",
            window="w" * 64,
            seeds=seeds,
            fold_rows=(100, 100),
            values={"sharpe": ((mean, mean + 0.1),) * max(1, len(seeds))},
        )

    (change,) = find_worse(make_two_folds(0.1, (0, 1)), make_two_folds(0.5, ()))

    description = describe_deteriorations((change, change))
    assert description.count("difference requires finite values in at least 3 folds.") == 1
    assert "nan" not in description


def test_a_promotion_reports_a_worse_metric_without_a_guard():
    candidate, reference = simulate_arms(np.random.default_rng(6), rho=0.0, gain=1.0)

    def average_seeds(losses):
        mean_SN = losses.loss_SN.mean(axis=0, keepdims=True)
        return make_losses(mean_SN, losses.subject, num_folds=4, deterministic=True)

    verdict = decide_promotion(
        GuardEvidence(
            candidate=candidate,
            reference=reference,
            deployed_losses=average_seeds(candidate),
            reference_deployed_losses=average_seeds(reference),
            candidate_metrics=make_metrics(
                subject=candidate.subject, window=candidate.window, sharpe=0.45
            ),
            reference_metrics=make_metrics(
                subject=reference.subject, window=candidate.window, sharpe=0.52
            ),
        ),
        GateSettings(),
        GuardSettings(),
        horizon_rows=1,
        unit="u",
    )

    assert verdict.outcome == "PROMOTE"
    assert [change.metric for change in verdict.worse_metrics] == ["sharpe"]
    assert "Worse than the reference: sharpe 0.45 against 0.52" in verdict.reason


def test_values_that_differ_only_in_the_17th_digit_are_displayed_differently():
    value = math.nextafter(0.1, 1)

    text = str(MetricDeterioration(metric="mae", candidate=value, reference=0.1, low=0.0, high=1.0))

    assert text.startswith("mae 0.10000000000000002 against 0.10000000000000001 ")
