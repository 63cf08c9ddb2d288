"""Levels that wander are elsewhere in the rows that follow, however they are prepared (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sluice.trace.rules.library import judge

LAGS, ROWS = 6, 900


def series(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(ROWS, generator=generator)
    if kind == "walk":
        return 100 + noise.cumsum(0)
    if kind == "trend":
        return 100 + torch.linspace(0, 25, ROWS) + noise
    return 100 + noise


def forecasting(kind, seed, *, prepared=lambda x: x, in_order=True):
    """Learn from the first rows of a series and be judged on those that follow."""

    def program():
        torch.manual_seed(seed)
        windows = series(kind, seed).unfold(0, LAGS + 1, 1)
        cut = int(0.7 * len(windows))
        mean, std = windows[:cut].mean(), windows[:cut].std()
        learned, judged = (windows[:cut] - mean) / std, (windows[cut:] - mean) / std
        x, y = prepared(judged[:, :LAGS] * std + mean), judged[:, LAGS:]
        order = torch.arange(len(x)) if in_order else torch.randperm(len(x))
        model = nn.Sequential(nn.Linear(LAGS, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            for at in torch.randperm(cut).split(32):
                optimizer.zero_grad()
                F.mse_loss(model(learned[at, :LAGS]), learned[at, LAGS:]).backward()
                optimizer.step()
            with torch.no_grad():
                for at in order.split(64):
                    F.mse_loss(model((x[at] - mean) / std), y[at])

    return program


def is_told(trace):
    return "splits preprocessed differently" in {found.fault for found in judge(trace)}


@pytest.mark.parametrize("kind", ["walk", "trend"])
@pytest.mark.parametrize("seed", range(4))
def test_a_level_that_goes_on_is_no_other_preprocessing(trace_of, kind, seed):
    assert not is_told(trace_of(forecasting(kind, seed)))


@pytest.mark.parametrize("kind", ["walk", "trend", "noise"])
@pytest.mark.parametrize(
    "prepared", [lambda x: 3 * x, lambda x: x.log(), lambda x: 100 + (x - 100) / 100]
)
def test_one_that_is_prepared_in_another_way_is_told(trace_of, kind, prepared):
    assert is_told(trace_of(forecasting(kind, 1, prepared=prepared)))


@pytest.mark.parametrize("in_order", [True, False])
def test_rows_that_have_nothing_to_do_with_each_other_are_told_by_less(trace_of, in_order):
    shifted = forecasting("noise", 1, prepared=lambda x: x + 1.5, in_order=in_order)

    assert is_told(trace_of(shifted))
    assert not is_told(trace_of(forecasting("noise", 1, in_order=in_order)))


def test_a_number_of_a_window_is_named_by_its_row_and_its_place_there(trace_of):
    def program():
        model = nn.Sequential(nn.Flatten(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x, y = torch.randn(64, 4, 2), torch.randn(64, 1)
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            F.mse_loss(model(x + 9 + torch.arange(8.0).reshape(4, 2)), y)

    (found,) = (f for f in judge(trace_of(program)) if f.fault == "splits preprocessed differently")

    assert "Column [3, 1] has mean" in found.what
