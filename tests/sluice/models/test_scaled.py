"""DATA-3: the scaling is fitted on train rows and stored with the weights."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from tests.support.synthetic import SineWorkload

X = torch.tensor([[[1.0, 10.0], [3.0, 10.0]], [[5.0, 10.0], [7.0, 10.0]]])
Y = torch.tensor([[100.0], [300.0]])


class LastRow(nn.Module):
    def forward(self, x):
        return x[:, -1, :1]


def fit(**changes):
    options = {"num_outputs": 1, "scale_inputs": True, "scale_target": True, **changes}
    return Scaled.fit(LastRow(), X, Y, **options)


def test_scaling_matches_known_values():
    """1, 3, 5, 7 have mean 4 and deviation sqrt(5); the targets have mean 200, deviation 100."""
    model = fit()

    assert model.x_mean.tolist() == [4, 10]
    assert model.x_std.tolist() == pytest.approx([5**0.5, 1])
    assert model(X).flatten().tolist() == pytest.approx(
        [200 + 100 * (3 - 4) / 5**0.5, 200 + 100 * (7 - 4) / 5**0.5]
    )


def test_input_and_target_scaling_can_be_disabled():
    assert fit(scale_target=False)(X).flatten().tolist() == pytest.approx([-1 / 5**0.5, 3 / 5**0.5])
    assert fit(scale_inputs=False)(X).flatten().tolist() == pytest.approx([500, 900])
    assert fit(scale_inputs=False, scale_target=False)(X.long()).dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_column_is_not_divided_by_its_deviation(dtype):
    """In double precision rounding gives a constant column of 0.3 a deviation of 1e-16."""
    x = torch.full((1001, 2, 1), 0.3, dtype=dtype)
    model = Scaled.fit(LastRow(), x, Y, num_outputs=1, scale_inputs=True, scale_target=False)

    assert model.x_std.tolist() == [1]
    assert model(x).abs().max() < 1e-6


def test_deviation_is_accurate_for_a_large_mean():
    noise = torch.randn(10_000, 1, 1, generator=torch.Generator().manual_seed(0))
    x = 10_000 + noise
    model = Scaled.fit(LastRow(), x, Y, num_outputs=1, scale_inputs=True, scale_target=False)

    assert float(model.x_std) == pytest.approx(float(x.double().std()), rel=1e-3)


def test_scaling_is_part_of_the_state_dict():
    fresh = Scaled(LastRow(), num_features=2, num_outputs=1, scale_inputs=True, scale_target=True)
    fresh.load_state_dict(fit().state_dict())

    assert torch.equal(fresh(X), fit()(X))


def make_rows(offset: float) -> Examples:
    return Examples(x=X + offset, y=Y, rows=np.arange(2))


def test_prepared_model_depends_only_on_its_seed():
    def weights(seed: int, disturb: int) -> torch.Tensor:
        torch.manual_seed(disturb)
        model = prepare_model(SineWorkload(), ModelSettings(hidden=4), make_rows(0), seed=seed)
        return nn.utils.parameters_to_vector(model.parameters())

    assert torch.equal(weights(1, 5), weights(1, 6))
    assert not torch.equal(weights(1, 5), weights(2, 5))


def test_prepare_model_does_not_advance_the_callers_generators():
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(1), random.random()
    torch.manual_seed(3)
    random.seed(3)
    prepare_model(SineWorkload(), ModelSettings(hidden=4), make_rows(0), seed=9)

    assert (torch.rand(1), random.random()) == expected


def test_prepared_model_is_scaled_by_the_train_rows():
    model = prepare_model(SineWorkload(), ModelSettings(hidden=4), make_rows(50), seed=1)

    assert model.x_mean.tolist() == [54, 60]
    assert (model.num_features, model.num_outputs) == (2, 1)


def test_number_of_outputs_comes_from_the_workload():
    class Classes(SineWorkload):
        scale_target = False

        def output_shape(self, y):
            return (len(y), 7)

    labels = Examples(x=X, y=torch.tensor([3, 4]), rows=np.arange(2))
    model = prepare_model(Classes(), ModelSettings(hidden=4), labels, seed=1)

    assert model(X).shape == (2, 7)


FLAT_Y = torch.tensor([100.0, 300.0])


class LastValue(nn.Module):
    def forward(self, x):
        return x[:, -1, 0]


def test_targets_of_shape_b_are_scaled_like_those_of_shape_b_1():
    """Oracle: targets (B, 1) without their last axis."""
    options = {"num_outputs": 1, "scale_inputs": True, "scale_target": True}
    flat = Scaled.fit(LastValue(), X, FLAT_Y, **options)

    assert flat(X).shape == (2,)
    assert torch.equal(flat(X), fit()(X)[:, 0])
    assert (flat.y_mean.tolist(), flat.y_std.tolist()) == ([200], [100])


@pytest.mark.parametrize("y", [FLAT_Y, torch.tensor([3, 4])])
def test_target_of_shape_b_has_one_output(y):
    class Flat(SineWorkload):
        scale_target = y.is_floating_point()

    model = prepare_model(
        Flat(), ModelSettings(hidden=4), Examples(x=X, y=y, rows=np.arange(2)), seed=1
    )
    expected = prepare_model(SineWorkload(), ModelSettings(hidden=4), make_rows(0), seed=1)

    assert (model.num_outputs, model.y_mean.shape) == (1, (1,))
    assert torch.equal(
        nn.utils.parameters_to_vector(model.parameters()),
        nn.utils.parameters_to_vector(expected.parameters()),
    )
    model.load_state_dict(expected.state_dict())
