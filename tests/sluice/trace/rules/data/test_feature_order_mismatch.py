"""Evaluation columns in another order, and similar but correct programs (TRACE-2)."""

import math

import pytest
import torch
from torch import nn

from sluice.trace.inspection.column_statistics import is_channels_first
from sluice.trace.rules.data.feature_order_mismatch import FEATURE_ORDER_MISMATCH
from sluice.trace.rules.data.preprocessing_skew import PREPROCESSING_SKEW


def make_generator(seed):
    return torch.Generator().manual_seed(seed)


def factor_rows(rows, *, width=6, seed=1):
    """Columns with different loadings on one factor: their correlations differ."""
    noise = torch.randn(rows, width + 1, generator=make_generator(seed))
    loadings = torch.linspace(0.05, 0.95, width)
    return loadings * noise[:, :1] + (1 - loadings**2).sqrt() * noise[:, 1:]


def random_walks(rows, *, width=4, seed=1):
    return torch.randn(rows, width, generator=make_generator(seed)).cumsum(0) / math.sqrt(rows)


def images(count, *, channels=4, seed=1):
    """Standardized channels that depend on the brightness of an image to different degrees."""
    channel_values = factor_rows(count * 64, width=channels, seed=seed)
    brightness = torch.randn(count, 1, generator=make_generator(seed + 50)) * torch.linspace(
        0.1, 1, channels
    )
    pixels = channel_values.reshape(count, 64, channels) + brightness[:, None]
    return pixels.transpose(1, 2).reshape(count, channels, 8, 8)


def train_and_evaluate(train_rows, *eval_sets, other_batch=None):
    """Train on rows, then evaluate every other set of rows."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(train_rows[0].numel(), 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in train_rows.split(32):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if other_batch is not None:
            optimizer.zero_grad()
            model(other_batch).square().mean().backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        for i, rows in enumerate(eval_sets):
            for batch in rows.split(50):
                model(batch)
            if i + 1 < len(eval_sets):  # another loader for the tracer
                next(iter(torch.utils.data.DataLoader(rows)))


def order_findings(trace):
    return [(f.fault, f.severity) for f in FEATURE_ORDER_MISMATCH(trace)]


ERROR = [("preprocessing skew", "error")]


@pytest.mark.parametrize(
    "order", [[5, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 0], [0, 1, 2, 5, 4, 3]], ids=str
)
def test_standardized_columns_in_another_order_are_reported(trace_of, order):
    def program():
        train_and_evaluate(factor_rows(1600), factor_rows(400, seed=2)[:, order])

    trace = trace_of(program)
    found = FEATURE_ORDER_MISMATCH(trace)

    assert [(f.fault, f.severity) for f in found] == ERROR
    assert found[0].evidence["num_columns"] == sum(i != j for i, j in enumerate(order))
    assert not PREPROCESSING_SKEW(trace)  # each column has the same distribution


def test_the_finding_names_the_swapped_columns(trace_of):
    def program():
        train_and_evaluate(factor_rows(1600), factor_rows(400, seed=2)[:, [0, 4, 2, 3, 1, 5]])

    (found,) = FEATURE_ORDER_MISMATCH(trace_of(program))

    moved = "column 1 contains column 4 of training, column 4 contains column 1 of training"
    assert f"{moved} (1600 training rows, 400 evaluation rows)" in found.what


def test_image_channels_in_another_order_are_reported(trace_of):
    def program():
        train_and_evaluate(images(480), images(120, seed=2)[:, [2, 1, 0, 3]])

    (found,) = FEATURE_ORDER_MISMATCH(trace_of(program))

    moved = "channel 0 contains channel 2 of training, channel 2 contains channel 0 of training"
    assert moved in found.what


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_images_with_the_same_channels_are_not_reported(trace_of, channels):
    def program():
        train_and_evaluate(images(480, channels=channels), images(120, channels=channels, seed=2))

    assert not order_findings(trace_of(program))


@pytest.mark.parametrize("seed", range(2, 10))
def test_rows_with_the_same_columns_are_not_reported(trace_of, seed):
    def program():
        train_and_evaluate(factor_rows(640, seed=seed + 100), factor_rows(60, seed=seed))

    assert not order_findings(trace_of(program))


@pytest.mark.slow
def test_random_walks_are_not_reported(trace_of):
    """The correlations of random walks change, but no order of the columns explains the change."""

    def program(seed):
        def run():
            rows = random_walks(1200, seed=seed)
            train_and_evaluate(rows[:900], rows[900:])

        return run

    assert sum(bool(order_findings(trace_of(program(seed)))) for seed in range(20)) == 0


def test_another_order_is_not_reported_if_a_second_evaluation_has_the_training_order(trace_of):
    def program():
        train_and_evaluate(
            factor_rows(1600),
            factor_rows(400, seed=2),
            factor_rows(400, seed=3)[:, [5, 1, 2, 3, 4, 0]],
        )

    assert not order_findings(trace_of(program))


def test_uncorrelated_columns_are_not_reported(trace_of):
    def program():
        uncorrelated = torch.randn(2000, 6, generator=make_generator(4))
        train_and_evaluate(uncorrelated[:1600], uncorrelated[1600:, [5, 1, 2, 3, 4, 0]])

    assert not order_findings(trace_of(program))


def test_a_channel_in_another_unit_is_reported_as_preprocessing_skew(trace_of):
    def program():
        eval_rows = images(120, seed=2)
        eval_rows[:, 1] = eval_rows[:, 1] * 9 + 40
        train_and_evaluate(images(480), eval_rows)

    (found,) = PREPROCESSING_SKEW(trace_of(program))

    assert "Channel 1 has mean" in found.what


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 3, 32, 32), True),
        ((8, 4, 6, 16, 16), True),
        ((8, 32, 32, 3), False),  # channels last: columns of the last dimension
        ((8, 1, 32, 32), False),
        ((8, 3, 2, 2), False),  # few values: each is a column
        ((8, 12, 30), False),  # steps of a series, or channels of one
    ],
    ids=str,
)
def test_channels_first_images_are_recognized_by_shape(shape, expected):
    assert is_channels_first(torch.zeros(shape)) == expected


def test_a_flat_batch_after_images_does_not_end_the_trace(trace_of):
    def program():
        class ScaledMean(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(()))

            def forward(self, x):
                return (x * self.weight).mean()

        model = ScaledMean()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for batch in (images(40), torch.randn(40), images(40, seed=3)):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()

    trace = trace_of(program)

    assert trace.num_steps == 3
    assert not any(n.kind == "failed" for n in trace.notes)
