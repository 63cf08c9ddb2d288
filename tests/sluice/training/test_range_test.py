"""TRAIN-2: the learning rate range test picks the steepest descent and restores all state."""

import copy
import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, SettingsError, TrainingFailed
from sluice.base.seeding import rng_state
from sluice.training.descent import RangeTestSettings
from sluice.training.range_test import RangeTest, range_test
from sluice.training.settings import TrainSettings
from tests.sluice.training.range_samples import Quadratic, examples, output_mean, squared_error

RANGE_OF_100 = RangeTestSettings(num_steps=100, window_decades=1.0)
UNCLIPPED = TrainSettings(clip_norm=1e9)


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread, as training does; more are slower on problems this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_on_quadratic(curvature: float, **settings) -> RangeTest:
    model = Quadratic(curvature)
    return range_test(
        model,
        output_mean,
        examples(8),
        RangeTestSettings(**settings),
        training=UNCLIPPED,
        seed=0,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


def make_network(dropout: float = 0.0, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 1)
    )


def run_on_rows(rows, *, seed: int = 0, loss_fn=squared_error) -> RangeTest:
    training = TrainSettings()
    return range_test(make_network(), loss_fn, rows, RANGE_OF_100, training=training, seed=seed)


@pytest.mark.parametrize("curvature", [0.3, 30.0, 3e4])
def test_pick_on_a_quadratic_matches_the_analytic_optimum(curvature):
    """With rates r = r_0 exp(d i) and curvature c the loss is exp(-2 c r / d) / 2.

    It is steepest over log r where 2 c r = d, far below 2 / c, the limit of stability.
    """
    result = run_on_quadratic(curvature)
    distance = RangeTestSettings().step_decades * math.log(10)

    assert result.rate == pytest.approx(distance / (2 * curvature), rel=0.25)
    assert result.rate < 0.1 * (2 / curvature)


def test_range_test_stops_when_the_loss_diverges():
    result = run_on_quadratic(300.0)

    assert result.ended in ("loss diverged", "non-finite loss")
    assert 2 / 300 < result.ended_at_rate < 1
    assert len(result.curve) < RangeTestSettings().num_steps
    assert all(math.isfinite(point.loss) for point in result.curve)


def test_pick_is_inversely_proportional_to_the_curvature():
    picks = [run_on_quadratic(curvature).rate for curvature in (1.0, 10.0, 100.0, 1000.0)]

    for low, high in itertools.pairwise(picks):
        assert high == pytest.approx(low / 10, rel=0.15)


def test_pick_is_below_the_rate_of_the_lowest_loss():
    result = run_on_rows(examples(2_000))

    assert 1e-3 < result.rate < result.lowest_loss_rate / 3


def test_each_loss_is_measured_after_its_step():
    """Oracle: gradient descent on the quadratic, step by step."""
    result = run_on_quadratic(2.0)
    weight, expected = 1.0, []
    for rate in np.geomspace(1e-7, 10, 200):
        weight *= 1 - 2.0 * rate
        expected.append(weight**2)

    assert result.start_loss == 1.0
    np.testing.assert_allclose([p.loss for p in result.curve], expected[: len(result.curve)])


def test_slopes_are_least_squares_fits():
    result = run_on_rows(examples(500))
    x = np.log10([point.rate for point in result.curve])
    y = np.array([point.loss for point in result.curve])
    half = result.window_steps // 2
    window = slice(50 - half, 50 + half + 1)

    slope, _ = np.polyfit(x[window], y[window], 1)

    assert result.curve[50].slope == pytest.approx(slope)
    assert result.curve[50].smoothed == pytest.approx(y[window].mean())
    assert result.curve[half - 1].slope is None


def test_model_optimizer_and_generators_are_restored_exactly():
    model, rows = make_network(dropout=0.3), examples(300)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    squared_error(model(rows.x), rows.y).backward()
    optimizer.step()
    gradients = [p.grad.clone() for p in model.parameters()]
    random.gauss(0, 1)
    np.random.standard_normal()  # noqa: NPY002
    weights, moments = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    generators = rng_state()

    range_test(
        model,
        squared_error,
        rows,
        RangeTestSettings(),
        training=TrainSettings(),
        seed=0,
        optimizer=optimizer,
    )

    def assert_same(left, right) -> None:
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)

    assert_same(dict(model.state_dict()), dict(weights))
    assert_same([p.grad for p in model.parameters()], gradients)
    assert_same(rng_state(), generators)
    after = optimizer.state_dict()
    assert after["param_groups"] == moments["param_groups"]
    assert_same(after["state"], moments["state"])
    assert model.training


def test_model_and_generators_are_restored_after_an_error():
    model = make_network().eval()
    before, generators = copy.deepcopy(model.state_dict()), rng_state()
    calls = 0

    def fails_later(output, y):
        nonlocal calls
        calls += 1
        if calls == 30:
            raise KeyError("the user's bug")
        return squared_error(output, y)

    with pytest.raises(KeyError):
        range_test(
            model,
            fails_later,
            examples(300),
            RangeTestSettings(),
            training=TrainSettings(),
            seed=0,
        )

    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    after = rng_state()
    assert torch.equal(generators["torch"], after["torch"])
    assert torch.equal(generators["python"], after["python"])
    assert not model.training


def test_curve_is_reproducible_for_each_seed():
    rows = examples(300)

    assert run_on_rows(rows) == run_on_rows(rows)
    assert run_on_rows(rows).curve != run_on_rows(rows, seed=1).curve


@pytest.mark.exhaustive
@pytest.mark.slow
def test_noise_has_no_descent():
    """The targets are unpredictable and the initial output is already optimal, in 40 draws."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 1))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)

    found = [
        range_test(
            model,
            squared_error,
            examples(2_000, signal=0.0, seed=seed),
            RANGE_OF_100,
            training=TrainSettings(batch_rows=32),
            seed=seed,
        ).rate
        for seed in range(40)
    ]

    assert sum(rate is not None for rate in found) <= 2


def test_weak_descent_in_noise_is_found_with_a_wider_window():
    """Only the excess loss of the initial weights, 0.5, can fall; batch losses vary by 0.13."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 1))
    settings, rows = RangeTestSettings(), examples(4_000, signal=0.0)

    result = range_test(model, squared_error, rows, settings, training=TrainSettings(), seed=0)

    assert result.window_steps > settings.window_steps
    assert 3e-3 < result.rate < 0.1


def test_increasing_loss_has_no_descent():
    class Rising(Quadratic):
        """The gradient has the wrong sign."""

        def forward(self, x):
            return 2 * super().forward(x).detach() - super().forward(x)

    model = Rising(1.0)
    result = range_test(
        model, output_mean, examples(8), RangeTestSettings(), training=UNCLIPPED, seed=0
    )

    assert result.rate is None
    assert result.ended == "loss diverged"
    assert "No descent found" in result.summary
    assert "check the sign of the loss" in result.fix


def test_constant_loss_has_no_descent():
    result = run_on_rows(examples(500), loss_fn=lambda out, y: 0 * squared_error(out, y) + 3)

    assert result.rate is None
    assert "gradients reach the weights" in result.fix


def test_too_low_highest_rate_is_reported():
    result = run_on_quadratic(1.0, highest_rate=1e-2)

    assert "end of the range" in result.summary
    assert "Raise highest_rate" in result.fix


def test_offset_of_the_loss_does_not_change_the_pick():
    """Negative losses, such as a log likelihood, are supported too."""
    rows = examples(500)
    plain = run_on_rows(rows)
    shifted = run_on_rows(rows, loss_fn=lambda out, y: squared_error(out, y) - 100)

    assert shifted.rate == pytest.approx(plain.rate, rel=0.2)
    assert shifted.ended == plain.ended


def test_range_test_changes_neither_frozen_nor_zero_rate_parameters():
    weights = []

    class Recording(nn.Sequential):
        """The range test trains a copy, so the weights are recorded in the forward pass."""

        def forward(self, x):
            weights.append([self[layer].weight.detach().clone() for layer in (1, 2, 4)])
            return super().forward(x)

    model = Recording(*make_network())
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    groups = [
        {"params": model[2].parameters(), "rate_share": 0.0},
        {"params": list(model[4].parameters())},
    ]

    result = range_test(
        model,
        squared_error,
        examples(500),
        RangeTestSettings(),
        training=TrainSettings(),
        seed=0,
        groups=groups,
    )

    assert result.rate is not None
    (fixed, zero_rate, trained), later = weights[0], weights[len(weights) // 2]
    assert torch.equal(later[0], fixed)
    assert torch.equal(later[1], zero_rate)
    assert not torch.equal(later[2], trained)


def test_non_finite_loss_before_the_first_step_is_an_error():
    rows = examples(50)
    rows.x[7, 0, 1] = math.nan

    with pytest.raises(TrainingFailed, match="before the first step"):
        run_on_rows(rows)


def test_optimizer_of_another_model_is_rejected():
    with pytest.raises(ContractError, match="6 of its parameters are not in Sequential"):
        range_test(
            make_network(),
            squared_error,
            examples(50),
            RangeTestSettings(),
            training=TrainSettings(),
            seed=0,
            optimizer=torch.optim.SGD(make_network().parameters(), lr=0.1),
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lowest_rate": 1.0, "highest_rate": 0.1}, "below highest_rate"),
        ({"num_steps": 20}, "must contain 5"),
        ({"lowest_rate": 1e-3, "highest_rate": 1e-2}, "must contain 5 to 100"),
    ],
)
def test_settings_with_too_few_steps_or_an_invalid_range_are_rejected(settings, message):
    with pytest.raises(SettingsError, match=message):
        RangeTestSettings(**settings)
