"""POC-5: healthy trainings pass for any seed; learning rates of 10 and 1e-9 do not."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sluice.base.errors import SettingsError
from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.loss_decrease import bound_loss_decrease, interim_confidence
from sluice.failfast.learning.mini_training import (
    MiniTraining,
    check_mini_training,
    judge_mini_training,
    run_mini_training,
)
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.constant_baseline import ConstantBaseline
from tests.support import failfast_workloads as planted
from tests.support.plain import Plain, digits, examples, normal


@pytest.fixture
def check(load_train_examples):
    examples = {}

    def run(workload, *, rate=3e-3, architecture="gru", seed=0, hidden=8, **poc):
        kind = type(workload)
        examples.setdefault(kind, load_train_examples(workload))
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
@pytest.mark.parametrize(
    ("rate", "num_seeds"),
    [
        (3e-3, 3),
        *(pytest.param(rate, 7, marks=pytest.mark.exhaustive) for rate in (5e-4, 3e-3, 2e-2)),
    ],
)
@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
def test_healthy_trainings_raise_no_false_alarm(check, architecture, rate, num_seeds):
    findings = [
        check(planted.Signals(), architecture=architecture, rate=rate, seed=seed)
        for seed in range(num_seeds)
    ]

    assert [finding.outcome for finding in findings] == ["pass"] * num_seeds, findings


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_a_rate_of_ten_fails(check, architecture, seed):
    finding = check(planted.Signals(), architecture=architecture, rate=10.0, seed=seed)

    assert (finding.outcome, finding.fault) == ("fail", "learning rate too high")
    assert "learning_rate 10" in finding.summary


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gru", "lstm", "linear"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_a_rate_of_a_billionth_fails(check, architecture, seed):
    finding = check(planted.Signals(), architecture=architecture, rate=1e-9, seed=seed)

    assert (finding.outcome, finding.fault) == ("fail", "loss not decreasing")
    assert finding.numbers["largest_rise_ratio"] < 1.001


@pytest.mark.parametrize(("last", "is_doubtful"), [(0.99, True), (0.9, False)])
def test_a_loss_near_that_of_the_constant_output_is_said_to_prove_little(last, is_doubtful):
    mini = MiniTraining(
        loss_SE=np.array([[2.0, last], [2.01, last], [1.99, last]]),
        model=nn.Identity(),
        examples=examples(torch.zeros(64, 1, 1), torch.zeros(64, 1)),
        baseline=ConstantBaseline(loss=1.0, unit=1.0),
        step_share=1.0,
    )

    finding = judge_mini_training(mini, PocSettings(), learning_rate=1e-3)

    assert finding.outcome == "pass"
    assert ("hardly below that of the constant output" in finding.summary) == is_doubtful


def test_a_loss_with_the_wrong_sign_fails(check):
    finding = check(planted.LossUpsideDown(), rate=1e-2)

    assert finding.outcome == "fail"
    assert finding.numbers["relative_fall"] < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_explosion_in_an_intermediate_epoch_is_detected(check, seed):
    """A linear model at rate 10 may end below its first loss; the epochs between betray it."""
    finding = check(planted.Signals(), architecture="linear", rate=10.0, seed=seed)

    assert finding.numbers["largest_rise_ratio"] > 10
    assert "After epoch" in finding.summary


def test_a_loss_that_becomes_nan_fails_and_reports_when(check):
    class Overflows(planted.Signals):
        def loss(self, output, y):
            # Finite until the output has moved.
            moved = (output - y).square().mean()
            return moved + (moved - moved.detach() + 1e38) * 10 * (moved.detach() < 17)

    finding = check(Overflows(), rate=3e-2)

    assert (finding.outcome, finding.fault) == ("fail", "learning rate too high")
    assert "must be finite" in finding.summary
    assert "epoch" in finding.summary


def test_the_first_value_is_the_one_before_training(check):
    finding = check(planted.Signals(), rate=1e-9)

    assert finding.numbers["first_loss"] == pytest.approx(finding.numbers["last_loss"], rel=1e-4)


def test_the_same_seed_gives_the_same_numbers(check):
    assert check(planted.Signals(), seed=3) == check(planted.Signals(), seed=3)
    assert check(planted.Signals(), seed=3) != check(planted.Signals(), seed=4)


def test_higher_required_decrease_needs_more_evidence(check):
    outcomes = [
        check(planted.Signals(), rate=1e-3, min_loss_decrease=fall).outcome
        for fall in (0.001, 0.05, 0.5, 0.99)
    ]

    assert outcomes[0] == "pass"
    assert outcomes[-1] == "fail"
    assert outcomes == sorted(outcomes, reverse=True)


def test_too_few_rows_are_insufficient(check):
    finding = check(planted.Signals(planted.SignalSettings(num_rows=160)))

    assert (finding.outcome, finding.fault) == ("insufficient", "too few rows")


def test_a_loss_of_zero_at_the_start_measures_nothing(check):
    class Zero(planted.Signals):
        def losses(self, output, y):
            return super().losses(output, y) * 0

    assert check(Zero()).outcome == "insufficient"


def test_the_bound_agrees_with_scipy_stats():
    from scipy import stats

    fall_S = np.array([0.31, 0.24, 0.35, 0.29])
    interval = stats.ttest_1samp(fall_S, 0, alternative="greater").confidence_interval(0.9)

    bound = bound_loss_decrease(fall_S, confidence=0.9)

    assert bound.lower == pytest.approx(interval.low)
    assert bound.mean == pytest.approx(fall_S.mean())


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
def test_noise_alone_passes_as_often_as_the_confidence_allows(num_seeds):
    """Under the null the true fall is exactly what is required."""
    required, draws = 0.01, 4000
    noise = np.random.default_rng(11).normal(required, 0.2, size=(draws, num_seeds))
    passes = sum(bound_loss_decrease(fall_S, confidence=0.95).lower > required for fall_S in noise)

    # 0.05 within four binomial standard errors.
    assert abs(passes / draws - 0.05) < 4 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("more", [3, 8, 20])
def test_two_interim_analyses_keep_the_error_rate_of_one(more):
    """Under the null; the second look is taken only where the first one leaves it open."""
    required, draws = 0.01, 4000
    settings = PocSettings(mini_max_seeds=more)
    confidence = interim_confidence(settings)
    noise = np.random.default_rng(12).normal(required, 0.2, size=(draws, more))
    passes = 0
    for fall_S in noise:
        first = bound_loss_decrease(fall_S[: settings.mini_seeds], confidence=confidence)
        bound = first
        if first.mean > required and not first.lower > required:
            bound = bound_loss_decrease(fall_S, confidence=confidence)
        passes += bound.lower > required

    # No more than 0.05, within four binomial standard errors; and half of it is not left unused.
    error = np.sqrt(0.05 * 0.95 / draws)
    assert 0.025 < passes / draws < 0.05 + 4 * error


def test_interim_confidence_splits_the_error_between_two_analyses():
    assert interim_confidence(PocSettings(mini_max_seeds=3)) == pytest.approx(0.95)
    assert interim_confidence(PocSettings(mini_max_seeds=8)) == pytest.approx(0.975)


def test_fewer_seeds_at_most_than_at_first_are_rejected():
    with pytest.raises(SettingsError, match="mini_max_seeds must not be below mini_seeds"):
        PocSettings.parse({"mini_seeds": 5, "mini_max_seeds": 4}, where="defs.yaml")


def test_nan_is_never_proof():
    assert not bound_loss_decrease(np.array([0.5, np.nan, 0.5]), confidence=0.95).lower > 0.01


X = normal(600, 5)
SCORE = X[:, :1] - X[:, 1:2] + 0.5 * normal(600, 1, seed=1)


def mlp(num_features, num_outputs):
    return nn.Sequential(nn.Linear(num_features, 32), nn.Tanh(), nn.Linear(32, num_outputs))


def conv(_, num_outputs):
    return nn.Sequential(
        nn.BatchNorm2d(1),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, num_outputs),
    )


def gaussian(output, y):
    return 0.5 * (output[:, 1] + (y[:, 0] - output[:, 0]) ** 2 / output[:, 1].exp())


def cross_entropy(output, y):
    return F.cross_entropy(output, y, reduction="none")


def classes(num_classes):
    return {"losses": cross_entropy, "shape": lambda y: (len(y), num_classes)}


CASES = {
    "squared": (Plain(network=mlp), examples(X, SCORE)),
    "offset": (
        Plain(network=mlp, losses=lambda o, y: (o - y).square().mean(1) - 2),
        examples(X, SCORE),
    ),
    "gaussian": (
        Plain(network=mlp, losses=gaussian, shape=lambda y: (len(y), 2)),
        examples(X, 0.3 * SCORE),
    ),
    "rare class": (
        Plain(network=mlp, **classes(2)),
        examples(X, (SCORE[:, 0] > SCORE.quantile(0.98)).long()),
    ),
    "scaled level": (Plain(network=mlp, scale_target=True), examples(X, 1e4 + 30 * SCORE)),
    "summed": (Plain(network=mlp, loss=lambda o, y: (o - y).square().sum()), examples(X, SCORE)),
    "batch norm": (Plain(network=conv, **classes(10)), digits()),
    "batch norm on raw": (
        Plain(network=conv, **classes(10)),
        examples(4080 * digits().x, digits().y),
    ),
}


def outcome_of(case, rate, *, seed=0, **training):
    workload, rows = CASES[case]
    settings = TrainSettings(learning_rate=rate, batch_rows=64, **training)
    return check_mini_training(workload, ModelSettings(), settings, rows, PocSettings(), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rate", [1e-2, pytest.param(1e-1, marks=pytest.mark.exhaustive)])
def test_losses_of_every_kind_learn_and_pass(case, rate):
    finding = outcome_of(case, rate)

    assert finding.outcome == "pass", finding
    assert finding.numbers["last_loss"] < finding.numbers["constant_baseline_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("rate", "kind"), [(1e-9, "loss not decreasing"), (10.0, "learning rate too high")]
)
@pytest.mark.parametrize("num_seeds", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_absurd_rates_fail_for_losses_of_every_kind(case, rate, kind, num_seeds):
    for seed in range(num_seeds):
        finding = outcome_of(case, rate, seed=seed)
        assert (finding.outcome, finding.fault) == ("fail", kind), finding


@pytest.mark.parametrize("case", ["batch norm", "batch norm on raw"])
def test_running_statistics_alone_lower_no_loss(case):
    """Their own adaption to the data is no learning."""
    assert abs(outcome_of(case, 1e-9).numbers["relative_fall"]) < 2e-3


def test_approaching_the_level_of_an_unscaled_target_only_warns():
    rows = examples(X, 1000 + SCORE)

    finding = check_mini_training(
        Plain(network=mlp),
        ModelSettings(),
        TrainSettings(learning_rate=0.1, batch_rows=64),
        rows,
        PocSettings(),
        seed=0,
    )

    assert finding.outcome == "warn"
    assert finding.numbers["relative_fall"] > 0.1
    assert "approach the target's level" in finding.summary
    assert "scale_target" in finding.fix


def uneven(architecture, rate, *, seed, **poc):
    """Huber loss, noise with heavy tails whose size depends on a feature."""
    tails = torch.from_numpy(np.random.default_rng(0).standard_t(3, size=(600, 1))).float()
    workload = Plain(
        network=architecture,
        losses=lambda o, y: F.huber_loss(o, y, reduction="none")[:, 0],
        scale_target=True,
    )
    return check_mini_training(
        workload,
        ModelSettings(),
        TrainSettings(learning_rate=rate, batch_rows=64),
        examples(X, X[:, :1] - 0.5 * X[:, 1:2] + tails * X[:, 2:3].exp()),
        PocSettings(**poc),
        seed=seed,
    )


def two_units(num_features, num_outputs):
    return nn.Sequential(nn.Linear(num_features, 2), nn.Tanh(), nn.Linear(2, num_outputs))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("architecture", [mlp, two_units])
def test_models_that_learn_by_different_amounts_pass_with_more_seeds(architecture):
    """POC-5: three seeds alone leave some of them in doubt."""
    findings = [uneven(architecture, 3e-4, seed=seed) for seed in range(12)]

    assert [finding.outcome for finding in findings] == ["pass"] * 12
    assert {finding.numbers["num_seeds"] for finding in findings} == {3, 8}
    asked_again = next(
        seed for seed, finding in enumerate(findings) if finding.numbers["num_seeds"] == 8
    )
    alone = uneven(
        architecture, 3e-4, seed=asked_again, mini_max_seeds=3, loss_decrease_confidence=0.975
    )
    assert alone.outcome == "fail"
    assert "mean of 8 seeds" in findings[asked_again].summary


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1e-9, 1e-6, 10.0])
@pytest.mark.parametrize("num_seeds", [1, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_rates_that_teach_nothing_fail_without_more_seeds(rate, num_seeds):
    for seed in range(num_seeds):
        finding = uneven(mlp, rate, seed=seed)

        assert (finding.outcome, finding.numbers["num_seeds"]) == ("fail", 3)


def binary(output, y):
    return F.binary_cross_entropy_with_logits(output, y, reduction="none")[:, 0]


def mixture(output, y):
    share, mean, log_std = output.chunk(3, dim=1)
    parts = share.log_softmax(dim=1) - log_std - 0.5 * ((y - mean) / log_std.exp()) ** 2
    return -parts.logsumexp(dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rate", [2e-3, *(pytest.param(rate, marks=pytest.mark.exhaustive) for rate in (3e-4, 1e-2))]
)
@pytest.mark.parametrize("case", ["rare", "mixture"])
def test_a_slow_way_to_a_rare_class_or_a_mixture_is_no_warning(case, rate):
    if case == "rare":
        workload = Plain(network=mlp, losses=binary)
        rows = examples(X, (SCORE.quantile(0.98) < SCORE).float())
    else:
        side = normal(600, 1, seed=3).sign()
        workload = Plain(network=mlp, losses=mixture, shape=lambda y: (len(y), 9))
        rows = examples(X, 0.01 * side * (X[:, :1] - X[:, 1:2]))
    for seed in range(2):
        finding = check_mini_training(
            workload,
            ModelSettings(),
            TrainSettings(learning_rate=rate, batch_rows=32),
            rows,
            PocSettings(),
            seed=seed,
        )
        assert finding.outcome == "pass", finding


@pytest.mark.exhaustive
def test_a_longer_real_training_may_start_more_slowly():
    brief, long = (outcome_of("squared", 1.5e-5, max_epochs=epochs) for epochs in (25, 5000))

    assert (brief.outcome, long.outcome) == ("fail", "pass")
    assert outcome_of("squared", 1e-9, max_epochs=100_000).outcome == "fail"


@pytest.fixture
def mini():
    workload, rows = CASES["squared"]
    training = TrainSettings(learning_rate=1e-2, batch_rows=64)
    return run_mini_training(workload, ModelSettings(), training, rows, PocSettings(), seed=0)


def test_the_mini_training_holds_what_other_checks_need(mini):
    settings = PocSettings()

    assert mini.loss_SE.shape == (settings.mini_seeds, 1 + settings.mini_epochs)
    assert not mini.model.training
    with torch.no_grad():
        loss = float((mini.model(mini.examples.x) - mini.examples.y).square().mean())
    assert loss == pytest.approx(mini.loss_SE[-1].min(), rel=1e-5)


def test_the_judgement_is_the_same_for_a_loss_that_is_scaled_and_shifted(mini):
    moved = dataclasses.replace(
        mini,
        loss_SE=1e3 * mini.loss_SE - 700,
        baseline=dataclasses.replace(
            mini.baseline,
            loss=1e3 * mini.baseline.loss - 700,
            unit=1e3 * mini.baseline.unit,
        ),
    )
    first, second = (judge_mini_training(m, PocSettings(), learning_rate=1) for m in (mini, moved))

    assert first.outcome == second.outcome == "pass"
    for name in ("relative_fall", "relative_fall_lower_bound", "largest_rise_ratio"):
        assert first.numbers[name] == pytest.approx(second.numbers[name])


@pytest.mark.parametrize(("first", "outcome"), [(0.2, "warn"), (0.6, "fail"), (1.0, "fail")])
def test_pretrained_model_without_loss_decrease_only_warns(mini, first, outcome):
    curve = np.full_like(mini.loss_SE, first * mini.baseline.loss)

    finding = judge_mini_training(
        dataclasses.replace(mini, loss_SE=curve), PocSettings(), learning_rate=1
    )

    assert (finding.outcome, finding.fault) == (outcome, "loss not decreasing")


def test_without_a_baseline_an_increase_is_relative_to_the_first_loss(mini):
    unmeasured = dataclasses.replace(mini.baseline, loss=np.nan, unit=np.nan, problem="none")
    curve = mini.loss_SE.copy()
    curve[0, 4] = 9 * curve[0, 0]

    finding = judge_mini_training(
        dataclasses.replace(mini, loss_SE=curve, baseline=unmeasured),
        PocSettings(),
        learning_rate=1,
    )

    assert finding.outcome == "fail"
    assert "an increase of 8 times the first loss" in finding.summary


@pytest.mark.parametrize(("rise", "outcome"), [(3.9, "pass"), (4.1, "fail")])
def test_one_loss_on_the_way_may_not_be_far_above_the_first(mini, rise, outcome):
    curve = mini.loss_SE.copy()
    above = max(curve[1, 0], mini.baseline.loss)
    curve[1, 4] = above + rise * mini.baseline.unit

    finding = judge_mini_training(
        dataclasses.replace(mini, loss_SE=curve), PocSettings(), learning_rate=1
    )

    assert finding.outcome == outcome
    assert finding.numbers["largest_rise_ratio"] == pytest.approx(rise)


def test_nan_is_never_progress(mini):
    curve = mini.loss_SE.copy()
    curve[0, -1] = np.nan

    finding = judge_mini_training(
        dataclasses.replace(mini, loss_SE=curve), PocSettings(), learning_rate=1
    )

    assert finding.outcome == "fail"


def test_a_loss_that_takes_no_constant_is_judged_by_its_first_value():
    class Contrary(Plain):
        def losses(self, output, y):
            if not output.is_contiguous() or output.dtype == torch.double:
                raise ValueError("one row for every example")
            if len(output) > 1 and bool((output == output[:1]).all()):
                raise ValueError("one row for every example")
            return super().losses(output, y)

    finding = check_mini_training(
        Contrary(network=mlp),
        ModelSettings(),
        TrainSettings(learning_rate=1e-2, batch_rows=64),
        examples(X, SCORE),
        PocSettings(),
        seed=0,
    )

    assert finding.outcome == "pass"
    assert "of its first value (losses() does not accept" in finding.summary
