"""Ids beyond a table that a network maps to its last row, and intentional mappings (TRACE-2)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.library import judge

ROWS = 200


class Rating(nn.Module):
    """Looks up users and items; ``fold`` maps the item ids."""

    def __init__(self, fold, *, rows=ROWS, by_index=False):
        super().__init__()
        self.users = nn.Embedding(50, 4)
        self.items = nn.Parameter(torch.randn(rows, 4)) if by_index else nn.Embedding(rows, 4)
        self.fold = fold

    def forward(self, users, items):
        ids = self.fold(items)
        looked_up = self.items[ids] if isinstance(self.items, nn.Parameter) else self.items(ids)
        return (self.users(users) * looked_up).sum(-1)


def last(ids, *, rows=ROWS):
    return ids.clamp(max=rows - 1)


def rate(model, items, *, steps=5):
    """Train on random ratings; ``items`` returns the ids of a batch."""

    def program():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        draws = torch.Generator().manual_seed(1)
        for _ in range(steps):
            users = torch.randint(50, (128,), generator=draws)
            optimizer.zero_grad()
            net(users, items(draws)).square().mean().backward()
            optimizer.step()

    return program


def ids_to(end, size=(128,)):
    return lambda draws: torch.randint(end, size, generator=draws)


def range_findings(trace):
    return [(f.fault, f.severity) for f in judge(trace)]


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize(
    "fold",
    [last, lambda ids: torch.where(ids < ROWS, ids, ROWS - 1), lambda ids: last(ids).int()],
    ids=["clamp", "where", "another type"],
)
def test_many_ids_that_share_the_last_row_are_reported(trace_of, fold, by_index):
    trace = trace_of(rate(lambda: Rating(fold, by_index=by_index), ids_to(300)))
    (found,) = judge(trace)

    assert (found.fault, found.severity, found.step) == ("index out of range", "error", 1)
    assert 0.25 < found.evidence["num_outside"] / found.evidence["num_ids"] < 0.42
    assert found.evidence["num_allowed"] == ROWS
    assert 290 < found.evidence["largest"] < 300


class Columns(Rating):
    """Receives users and items as columns of one table."""

    def forward(self, users, items):
        return super().forward(users, items[:, 1])


def test_ids_in_a_column_are_recorded(trace_of):
    assert range_findings(trace_of(rate(lambda: Columns(last), ids_to(300, (128, 3))))) == [
        ("index out of range", "error")
    ]


@pytest.mark.parametrize(
    ("fold", "end"),
    [
        (last, ROWS),
        (last, 208),
        (lambda ids: ids % ROWS, 300),
        (lambda ids: torch.where(ids < ROWS - 1, ids + 1, 0), 300),
        (lambda ids: torch.where(ids < ROWS, (7 * ids + 3) % ROWS, ROWS - 1), 300),
        (lambda ids: (ids // 2).clamp(max=ROWS - 1), 500),
    ],
    ids=["in range", "a few are unknown", "modulo", "unknown is 0", "hashed", "buckets"],
)
def test_intentionally_folded_ids_are_not_reported(trace_of, fold, end):
    assert range_findings(trace_of(rate(lambda: Rating(fold), ids_to(end)))) == []


def test_the_large_values_of_a_quantity_may_be_one_bucket(trace_of):
    """A table of few rows may represent ages or counts, so the finding needs confirmation."""

    def program():
        rate(lambda: Rating(lambda n: last(n, rows=20), rows=20), ids_to(30))()

    assert range_findings(trace_of(program)) == [("index out of range", "confirm")]
