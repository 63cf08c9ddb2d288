"""Number of batches of a data loader that are fingerprinted."""

import pytest
import torch
from torch import nn

from sluice.trace.attach import active_tracer, traced
from sluice.trace.settings import TraceSettings
from sluice.trace.trace_reader import read_trace


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 4), (2, 8)])
def test_only_the_first_batches_are_fingerprinted_if_a_step_has_no_statistics(
    tmp_path, limit, expected
):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = TraceSettings(fingerprinted_batches=limit)
    with traced(tmp_path, settings) as folder:
        for _ in range(3):
            model(torch.ones(4, 2)).mean().backward()
            optimizer.step()
        active_tracer().sampling.samples_statistics = False
        for _ in torch.utils.data.DataLoader(torch.arange(12.0)[:, None], batch_size=4):
            pass

    (epoch,) = read_trace(folder).epochs
    assert epoch.num_contents == expected


@pytest.mark.parametrize("num_taken", [4, 1])
def test_prefetched_indices_of_persistent_workers_belong_to_the_epoch_that_begins(
    tmp_path, num_taken
):
    loader = torch.utils.data.DataLoader(
        torch.arange(8.0)[:, None],
        batch_size=2,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    with traced(tmp_path, TraceSettings()) as folder:
        for _ in range(8):
            batches = iter(loader)
            for _ in range(num_taken):
                next(batches)
            if num_taken == len(loader):
                assert next(batches, None) is None

    epochs = read_trace(folder).epochs
    assert [epoch.epoch for epoch in epochs] == [1, 2, 3, 4, 8]
    # A worker prefetches two batches ahead of those that were taken.
    num_indices = min(num_taken + 2, len(loader)) * 2
    assert [epoch.num_indices for epoch in epochs] == [num_indices] * 5
    assert {epoch.first for epoch in epochs} == {tuple(range(num_indices))}
