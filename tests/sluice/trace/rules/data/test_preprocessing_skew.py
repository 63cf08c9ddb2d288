"""Evaluation inputs that are preprocessed differently (TRACE-2)."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.rules.library import judge
from tests.support.traced.small_programs import fault_severities, random_rows, train_step


def test_shifted_outputs_of_another_network_are_not_reported(trace_of):
    def program():
        torch.manual_seed(1)
        body, head = nn.Linear(6, 4), nn.Linear(4, 1)
        both = [*body.parameters(), *head.parameters()]
        optimizer = torch.optim.Adam(both, lr=0.3)
        x = random_rows(400)
        for rows in torch.arange(320).reshape(10, 32).repeat(4, 1):
            train_step(optimizer, (head(body(x[rows]))[:, 0] - 40).square().mean())
        with torch.no_grad():
            head(body(x[320:]))

    assert "preprocessing skew" not in {fault for fault, _ in fault_severities(trace_of(program))}


def test_an_evaluation_before_the_first_step_is_reported_at_step_1(trace_of):
    def program():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with torch.no_grad():
            model(100 * random_rows(64, seed=2))
        for number in range(8):
            train_step(optimizer, model(random_rows(64, seed=number)).square().mean())

    found = [f for f in judge(trace_of(program)) if f.fault == "preprocessing skew"]

    assert [f.step for f in found] == [1]


def train_on_table(train_rows, eval_rows, *, from_loader=False):
    model = nn.Sequential(nn.Linear(train_rows.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = random_rows(len(train_rows), 1, seed=7)
    batches = DataLoader(TensorDataset(train_rows, y), batch_size=100)
    for _ in range(2):
        rows = batches if from_loader else zip(train_rows.split(100), y.split(100), strict=True)
        for x, target in rows:
            optimizer.zero_grad()
            F.mse_loss(model(x), target).backward()
            optimizer.step()
        with torch.no_grad():
            model(eval_rows)


@pytest.mark.parametrize(
    ("change", "is_reported"),
    [
        ("logarithm", True),
        ("none", False),
        ("trend", False),  # of a growing column, in the rows after training
        ("volatility", False),  # of all columns, as in a market crisis
    ],
)
def test_a_logarithm_applied_to_one_split_only_is_reported(trace_of, change, is_reported):
    train_rows, eval_rows = random_rows(1000, 7), random_rows(300, 7, seed=2)
    train_raw = (1.0 + 0.6 * train_rows[:, 1]).exp()
    eval_raw = (1.0 + 0.6 * eval_rows[:, 1]).exp()
    mean, deviation = train_raw.log1p().mean(), train_raw.log1p().std()
    train_rows[:, 1] = (train_raw.log1p() - mean) / deviation
    eval_rows[:, 1] = ((eval_raw if change == "logarithm" else eval_raw.log1p()) - mean) / deviation
    if change == "trend":
        ramp = torch.linspace(-1.7, 1.7, 1000)
        train_rows[:, 2], eval_rows[:, 2] = ramp, 1.7 + torch.linspace(0, 1.0, 300)
    elif change == "volatility":
        eval_rows *= 1.9
        eval_rows[:, 1] = 3 + 1.5 * eval_rows[:, 1]

    trace = trace_of(lambda: train_on_table(train_rows, eval_rows))

    found = [f for f in judge(trace) if f.fault == "preprocessing skew"]
    assert bool(found) is is_reported
    assert all("Column 1 " in f.what for f in found)


LAGS, ROWS = 6, 900


def series(kind, seed):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(ROWS, generator=generator)
    if kind == "walk":
        return 100 + noise.cumsum(0)
    if kind == "trend":
        return 100 + torch.linspace(0, 25, ROWS) + noise
    return 100 + noise


def make_forecasting_program(kind, seed, *, preprocess=lambda x: x, in_order=True):
    """Return a program that trains on the first rows of a series and is evaluated on the rest."""

    def program():
        torch.manual_seed(seed)
        windows = series(kind, seed).unfold(0, LAGS + 1, 1)
        cut = int(0.7 * len(windows))
        mean, std = windows[:cut].mean(), windows[:cut].std()
        train_windows, eval_windows = (windows[:cut] - mean) / std, (windows[cut:] - mean) / std
        x, y = preprocess(eval_windows[:, :LAGS] * std + mean), eval_windows[:, LAGS:]
        order = torch.arange(len(x)) if in_order else torch.randperm(len(x))
        model = nn.Sequential(nn.Linear(LAGS, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            for indices in torch.randperm(cut).split(32):
                optimizer.zero_grad()
                F.mse_loss(
                    model(train_windows[indices, :LAGS]), train_windows[indices, LAGS:]
                ).backward()
                optimizer.step()
            with torch.no_grad():
                for indices in order.split(64):
                    F.mse_loss(model((x[indices] - mean) / std), y[indices])

    return program


def has_skew(trace):
    return "preprocessing skew" in {found.fault for found in judge(trace)}


@pytest.mark.parametrize("kind", ["walk", "trend"])
@pytest.mark.parametrize("seed", range(4))
def test_a_drifting_series_is_not_reported(trace_of, kind, seed):
    assert not has_skew(trace_of(make_forecasting_program(kind, seed)))


@pytest.mark.parametrize("kind", ["walk", "trend", "noise"])
@pytest.mark.parametrize(
    "preprocess", [lambda x: 3 * x, lambda x: x.log(), lambda x: 100 + (x - 100) / 100]
)
def test_a_differently_preprocessed_series_is_reported(trace_of, kind, preprocess):
    assert has_skew(trace_of(make_forecasting_program(kind, 1, preprocess=preprocess)))


@pytest.mark.parametrize("in_order", [True, False])
def test_a_small_shift_of_independent_rows_is_reported(trace_of, in_order):
    shifted = make_forecasting_program("noise", 1, preprocess=lambda x: x + 1.5, in_order=in_order)

    assert has_skew(trace_of(shifted))
    assert not has_skew(trace_of(make_forecasting_program("noise", 1, in_order=in_order)))


def test_the_finding_names_a_value_of_a_window_by_row_and_column(trace_of):
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

    (found,) = (f for f in judge(trace_of(program)) if f.fault == "preprocessing skew")

    assert "Column [3, 1] has mean" in found.what
