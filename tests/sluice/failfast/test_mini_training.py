"""POC-5: healthy trainings pass, whatever the seed; rates of 10 and 1e-9 do not."""

import numpy as np
import pytest

from sluice.failfast.mini_training import check_mini_training, fall_bound
from sluice.failfast.settings import PocSettings
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from tests.support import failfast_workloads as planted


@pytest.fixture
def check(train_of):
    examples = {}

    def run(workload, *, rate=3e-3, architecture="gru", seed=0, hidden=8, **poc):
        kind = type(workload)
        examples.setdefault(kind, train_of(workload))
        return check_mini_training(
            workload,
            ModelSettings(architecture=architecture, hidden=hidden),
            TrainSettings(learning_rate=rate, batch_rows=32),
            examples[kind],
            PocSettings(**{"mini_rows": 192} | poc),
            seed=seed,
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5e-4, 3e-3, 2e-2])
@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
def test_healthy_trainings_raise_no_false_alarm(check, architecture, rate):
    findings = [
        check(planted.Signals(), architecture=architecture, rate=rate, seed=seed)
        for seed in range(7)
    ]

    assert [finding.outcome for finding in findings] == ["pass"] * 7, findings


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rate_of_ten_fails(check, architecture, seed):
    finding = check(planted.Signals(), architecture=architecture, rate=10.0, seed=seed)

    assert (finding.outcome, finding.kind) == ("fail", "mini training diverged")
    assert "learning_rate 10" in finding.summary


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
@pytest.mark.parametrize("seed", range(3))
def test_a_rate_of_a_billionth_fails(check, architecture, seed):
    finding = check(planted.Signals(), architecture=architecture, rate=1e-9, seed=seed)

    assert (finding.outcome, finding.kind) == ("fail", "mini training without progress")
    assert finding.numbers["largest_rise_ratio"] < 1.001


def test_a_loss_with_the_wrong_sign_fails(check):
    finding = check(planted.LossUpsideDown(), rate=1e-2)

    assert finding.outcome == "fail"
    assert finding.numbers["relative_fall"] < 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_rate_whose_last_loss_looks_fine_is_caught_on_the_way(check, seed):
    """A linear model at rate 10 may end below its first loss; the epochs between betray it."""
    finding = check(planted.Signals(), architecture="linear", rate=10.0, seed=seed)

    assert finding.numbers["largest_rise_ratio"] > 10
    assert "On the way, after epoch" in finding.summary


def test_a_loss_that_becomes_nan_fails_and_says_when(check):
    class Overflows(planted.Signals):
        def loss(self, output, y):
            # Finite until the output has moved.
            moved = (output - y).square().mean()
            return moved + (moved - moved.detach() + 1e38) * 10 * (moved.detach() < 17)

    finding = check(Overflows(), rate=3e-2)

    assert (finding.outcome, finding.kind) == ("fail", "mini training diverged")
    assert "must be finite" in finding.summary
    assert "epoch" in finding.summary


def test_the_first_value_is_the_one_before_training(check):
    finding = check(planted.Signals(), rate=1e-9)

    assert finding.numbers["first_loss"] == pytest.approx(finding.numbers["last_loss"], rel=1e-4)


def test_the_same_seed_gives_the_same_numbers(check):
    assert check(planted.Signals(), seed=3) == check(planted.Signals(), seed=3)
    assert check(planted.Signals(), seed=3) != check(planted.Signals(), seed=4)


def test_more_is_asked_when_the_required_fall_is_higher(check):
    outcomes = [
        check(planted.Signals(), rate=1e-3, min_relative_fall=fall).outcome
        for fall in (0.001, 0.05, 0.5, 0.99)
    ]

    assert outcomes[0] == "pass"
    assert outcomes[-1] == "fail"
    assert outcomes == sorted(outcomes, reverse=True)


def test_too_few_rows_are_insufficient(check):
    finding = check(planted.Signals(planted.SignalSettings(num_rows=160)))

    assert (finding.outcome, finding.kind) == ("insufficient", "too few rows")


def test_a_loss_of_zero_at_the_start_measures_nothing(check):
    class Zero(planted.Signals):
        def losses(self, output, y):
            return super().losses(output, y) * 0

    assert check(Zero()).outcome == "insufficient"


def test_the_bound_agrees_with_scipy_stats():
    from scipy import stats

    fall_S = np.array([0.31, 0.24, 0.35, 0.29])
    interval = stats.ttest_1samp(fall_S, 0, alternative="greater").confidence_interval(0.9)

    bound = fall_bound(fall_S, confidence=0.9)

    assert bound.lower == pytest.approx(interval.low)
    assert bound.mean == pytest.approx(fall_S.mean())


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_noise_alone_passes_as_often_as_the_confidence_allows(num_seeds):
    """Under the null the true fall is exactly what is required."""
    required, draws = 0.01, 4000
    noise = np.random.default_rng(11).normal(required, 0.2, size=(draws, num_seeds))
    passes = sum(fall_bound(fall_S, confidence=0.95).lower > required for fall_S in noise)

    # 0.05 within four binomial standard errors.
    assert abs(passes / draws - 0.05) < 4 * np.sqrt(0.05 * 0.95 / draws)


def test_nan_is_never_proof():
    assert not fall_bound(np.array([0.5, np.nan, 0.5]), confidence=0.95).lower > 0.01
