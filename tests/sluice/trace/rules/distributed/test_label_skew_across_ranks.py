"""Ranks whose label distributions differ (TRACE-5)."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sluice.trace.rules.distributed.label_skew_across_ranks import LABEL_SKEW_ACROSS_RANKS
from tests.support.traced.small_programs import random_rows, train_step


def make_program(counts_by_rank, *, has_float_labels=False):
    """Return a program for a rank whose rows have label i ``counts_by_rank[rank][i]`` times."""

    def program(rank):
        counts = torch.tensor(counts_by_rank[rank])
        labels = torch.arange(len(counts)).repeat_interleave(counts)
        if has_float_labels:
            labels = labels + 0.5
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = TensorDataset(random_rows(len(labels), seed=rank), labels)
        for x, _ in DataLoader(data, batch_size=64, shuffle=True):
            train_step(optimizer, model(x).square().mean())

    return program


@pytest.mark.parametrize(("num_rows", "severity"), [(40, "confirm"), (38, "warning")])
def test_a_label_that_a_rank_lacks_needs_confirmation(rank_traces_of, num_rows, severity):
    """If both labels were equally frequent on each rank, half of its rows would have each."""
    program = make_program([[num_rows, 0], [0, num_rows]])

    (found,) = LABEL_SKEW_ACROSS_RANKS(rank_traces_of(program))

    assert (found.fault, found.severity, found.step) == ("label skew across ranks", severity, 1)
    assert found.evidence == {"distance": 0.5, "num_labels": 2}
    assert "differs by 50% from the distribution of all ranks" in found.what
    assert found.what.endswith("rank 0 has no label 1.") is (severity == "confirm")


@pytest.mark.parametrize(("num_rows", "num_findings"), [(70, 0), (71, 1)])
def test_the_distance_between_label_distributions_must_exceed_a_fifth(
    rank_traces_of, num_rows, num_findings
):
    counts = [num_rows, 100 - num_rows]

    found = LABEL_SKEW_ACROSS_RANKS(rank_traces_of(make_program([counts, counts[::-1]])))

    assert [f.severity for f in found] == ["warning"] * num_findings
    assert [f.evidence["distance"] for f in found] == [pytest.approx(0.21)] * num_findings


@pytest.mark.parametrize(("num_rows", "num_findings"), [(9, 0), (10, 1)])
def test_five_expected_rows_per_label_are_required(rank_traces_of, num_rows, num_findings):
    """Each rank has all rows of five labels, and would have half of them by chance."""
    counts = [num_rows] * 5 + [0] * 5

    found = LABEL_SKEW_ACROSS_RANKS(rank_traces_of(make_program([counts, counts[::-1]])))

    assert [f.severity for f in found] == ["warning"] * num_findings


@pytest.mark.parametrize("num_labels", [64, 65])
def test_more_than_64_labels_of_a_rank_are_not_compared(rank_traces_of, num_labels):
    half = num_labels // 2
    counts = [12] * half + [1] * (num_labels - half)

    found = LABEL_SKEW_ACROSS_RANKS(rank_traces_of(make_program([counts, counts[::-1]])))

    assert len(found) == (num_labels == 64)


@pytest.mark.parametrize(
    "counts_by_rank",
    [[[30, 10], [30, 10]], [[12, 4], [4, 12]]],
    ids=["equal", "by chance"],
)
def test_similar_label_distributions_are_not_reported(rank_traces_of, counts_by_rank):
    assert LABEL_SKEW_ACROSS_RANKS(rank_traces_of(make_program(counts_by_rank))) == ()


SKEWED = [[40, 0], [0, 40]]


def test_ranks_that_do_not_share_gradients_may_have_different_labels(rank_traces_of):
    traces = rank_traces_of(make_program(SKEWED), is_wrapped=False)

    assert LABEL_SKEW_ACROSS_RANKS(traces) == ()


def test_float_targets_are_not_labels(rank_traces_of):
    traces = rank_traces_of(make_program(SKEWED, has_float_labels=True))

    assert LABEL_SKEW_ACROSS_RANKS(traces) == ()
