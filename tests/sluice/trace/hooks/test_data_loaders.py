"""Recorded batches and epochs of data loaders."""

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


@pytest.mark.parametrize(
    "convert",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda batch: torch.nested.nested_tensor(list(batch)),
        lambda batch: batch.to("meta"),
        lambda batch: torch.quantize_per_tensor(batch, 0.1, 0, torch.qint8),
        lambda batch: batch.to(torch.float8_e4m3fn),
    ],
    ids=["sparse", "CSR", "nested", "meta", "quantized", "8-bit floats"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_batch_of_tensors_that_are_not_dense_does_not_end_the_trace(trace_of, convert):
    rows = torch.arange(12.0).reshape(6, 2)

    def collate(indices):
        return convert(rows[indices]), torch.tensor(indices)

    def program():
        for _ in torch.utils.data.DataLoader(range(6), batch_size=2, collate_fn=collate):
            pass

    trace = trace_of(program)
    assert not trace.notes
    assert [epoch.num_batches for epoch in trace.epochs] == [3]


def test_a_network_with_a_nested_input_does_not_end_the_trace(trace_of):
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, texts):
            return self.layer(texts).to_padded_tensor(0.0).mean(1)

    def program():
        network = Pooling()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(2):
            texts = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)])
            network(texts).sum().backward()
            optimizer.step()

    trace = trace_of(program)
    assert not trace.notes
    assert trace.end.steps == 2


@pytest.mark.filterwarnings("ignore")
def test_a_network_with_a_quantized_input_does_not_end_the_program(trace_of):
    class Dequantizing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, batch):
            return self.layer(batch.dequantize())

    def program():
        network = Dequantizing()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        network(torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8)).sum().backward()
        optimizer.step()

    trace = trace_of(program)
    assert not trace.notes
    assert trace.end.steps == 1


def test_a_network_on_the_meta_device_does_not_end_the_trace(trace_of):
    """Programs run such a network to count its operations."""

    def program():
        with torch.device("meta"):
            network = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
            tokens = torch.zeros(2, 5, dtype=torch.long)
            for _ in range(2):
                logits = network(tokens).flatten(0, 1)
                nn.functional.cross_entropy(logits, tokens.flatten()).backward()
            with torch.no_grad():
                nn.functional.mse_loss(logits, logits)
        network = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        network(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    trace = trace_of(program)
    assert not trace.notes
    assert trace.end.steps == 1
