"""Ids beyond a table that a network maps to its last row, and intentional mappings (TRACE-2)."""

import pytest
import torch
from torch import nn

from sluice.trace.rules.library import judge

ROWS = 200


class Rating(nn.Module):
    """Looks up users and items; ``map_ids`` is applied to the item ids."""

    def __init__(self, map_ids, *, rows=ROWS, by_index=False):
        super().__init__()
        self.users = nn.Embedding(50, 4)
        self.items = nn.Parameter(torch.randn(rows, 4)) if by_index else nn.Embedding(rows, 4)
        self.map_ids = map_ids

    def forward(self, users, items):
        ids = self.map_ids(items)
        looked_up = self.items[ids] if isinstance(self.items, nn.Parameter) else self.items(ids)
        return (self.users(users) * looked_up).sum(-1)


def clamp_to_last(ids, *, rows=ROWS):
    return ids.clamp(max=rows - 1)


def make_program(model, items, *, steps=5):
    """Train on random ratings; ``items`` returns the ids of a batch."""

    def program():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            users = torch.randint(50, (128,), generator=generator)
            optimizer.zero_grad()
            net(users, items(generator)).square().mean().backward()
            optimizer.step()

    return program


def random_ids(num_ids, size=(128,)):
    return lambda generator: torch.randint(num_ids, size, generator=generator)


def range_findings(trace):
    return [(f.fault, f.severity) for f in judge(trace)]


@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize(
    "map_ids",
    [
        clamp_to_last,
        lambda ids: torch.where(ids < ROWS, ids, ROWS - 1),
        lambda ids: clamp_to_last(ids).int(),
    ],
    ids=["clamp", "where", "another type"],
)
def test_many_ids_that_share_the_last_row_are_reported(trace_of, map_ids, by_index):
    trace = trace_of(make_program(lambda: Rating(map_ids, by_index=by_index), random_ids(300)))
    (found,) = judge(trace)

    assert (found.fault, found.severity, found.step) == ("index out of range", "error", 1)
    assert 0.25 < found.evidence["num_outside"] / found.evidence["num_ids"] < 0.42
    assert found.evidence["num_allowed"] == ROWS
    assert 290 < found.evidence["largest"] < 300


class Columns(Rating):
    """Receives users and items as columns of one table."""

    def forward(self, users, items):
        return super().forward(users, items[:, 1])


def test_clamped_ids_in_an_input_column_are_reported(trace_of):
    assert range_findings(
        trace_of(make_program(lambda: Columns(clamp_to_last), random_ids(300, (128, 3))))
    ) == [("index out of range", "error")]


@pytest.mark.parametrize(
    ("map_ids", "num_ids"),
    [
        (clamp_to_last, ROWS),
        (clamp_to_last, 208),
        (lambda ids: ids % ROWS, 300),
        (lambda ids: torch.where(ids < ROWS - 1, ids + 1, 0), 300),
        (lambda ids: torch.where(ids < ROWS, (7 * ids + 3) % ROWS, ROWS - 1), 300),
        (lambda ids: (ids // 2).clamp(max=ROWS - 1), 500),
    ],
    ids=["in range", "a few are unknown", "modulo", "unknown is 0", "hashed", "buckets"],
)
def test_intentionally_mapped_ids_are_not_reported(trace_of, map_ids, num_ids):
    assert (
        range_findings(trace_of(make_program(lambda: Rating(map_ids), random_ids(num_ids)))) == []
    )


def test_ids_clamped_to_a_small_table_need_confirmation(trace_of):
    """A table of few rows may represent ages or counts, so the finding needs confirmation."""

    def program():
        make_program(lambda: Rating(lambda n: clamp_to_last(n, rows=20), rows=20), random_ids(30))()

    assert range_findings(trace_of(program)) == [("index out of range", "confirm")]
