"""The accepted range of a column follows from its training data."""

import numpy as np
import pytest
import torch
from torch import nn

from sluice.models.input_encoder import InputEncoder
from sluice.models.scaled import Scaled
from sluice.serving.contract import InputContract
from sluice.serving.deployed import _column_bounds
from sluice.serving.http_errors import InvalidInput
from sluice.workloads.codecs.window_requests import MAX_MAGNITUDE, PredictRequest


def make_network(mean: float, std: float, *, constant: float = 5.0) -> Scaled:
    """A network of two columns, of which the second was constant in training."""
    network = Scaled(
        nn.Linear(2, 1), num_features=2, num_outputs=1, scale_inputs=True, scale_target=False
    )
    network.x_mean = torch.tensor([mean, constant])
    network.x_std = torch.tensor([std, 1.0])
    return network


def make_request(*values: float, columns: tuple[str, ...] = ("a", "b")) -> PredictRequest:
    return PredictRequest(columns=list(columns), windows=[[list(values)]])


def test_bounds_are_a_million_deviations_of_the_widest_network() -> None:
    bounds = _column_bounds([make_network(10.0, 2.0), make_network(12.0, 3.0)], num_columns=2)

    assert bounds is not None
    assert bounds[0] == pytest.approx((12 - 3e6, 12 + 3e6))
    assert bounds[1] == (-MAX_MAGNITUDE, MAX_MAGNITUDE), "a constant column has no scale"


def test_networks_without_scales_keep_single_precision_bounds() -> None:
    assert _column_bounds([make_network(0.0, 1.5), nn.Linear(2, 1)], num_columns=2) is None
    assert _column_bounds([make_network(0.0, 1.5)], num_columns=3) is None
    assert np.isfinite(np.float32(MAX_MAGNITUDE) ** 2)


def test_scales_of_encoded_inputs_do_not_bound_the_columns() -> None:
    """A client sends prices; the network standardises their logarithms."""
    network = make_network(0.0, 1.5)
    network.encoder = InputEncoder(lambda x, _: x, {"unit": torch.ones(1)})

    assert _column_bounds([network], num_columns=2) is None


@pytest.mark.parametrize("value", [11.0, -11.0, 1.7e18, 3e38, 1e39])
def test_a_value_out_of_bounds_is_refused_with_its_column_in_any_order(value: float) -> None:
    contract = InputContract(columns=("a", "b"), seq_len=1, bounds=((-10.0, 10.0), (0.0, 1.0)))

    with pytest.raises(InvalidInput) as refused:
        contract.read_windows(make_request(0.5, value, columns=("b", "a")))

    assert refused.value.what == (
        f"A value of column 'a' must be from -10 to 10, got {value:.6g} at windows.0.0."
    )
    assert contract.read_windows(make_request(1.0, 10.0, columns=("b", "a"))).tolist() == [
        [[10.0, 1.0]]
    ]


def test_models_with_different_bounds_accept_the_same_requests() -> None:
    one = InputContract(columns=("a", "b"), seq_len=1, bounds=((-10.0, 10.0), (0.0, 1.0)))
    two = InputContract(columns=("a", "b"), seq_len=1)

    assert one.has_same_input(two)
    assert not one.has_same_input(InputContract(columns=("b", "a"), seq_len=1))
    assert not one.has_same_input(InputContract(columns=("a", "b"), seq_len=2))
