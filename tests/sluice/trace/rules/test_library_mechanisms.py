"""Meta devices, tensor subclasses, nested and sparse tensors are supported (TRACE-16)."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.support.traced.small_programs import labeled_rows, train_step


def test_a_network_loaded_from_the_meta_device_is_traced(trace_of):
    def program():
        x, y = labeled_rows(64)
        state = nn.Linear(8, 3).state_dict()
        with torch.device("meta"):
            model = nn.Linear(8, 3)
        model.load_state_dict({name: t.to("meta") for name, t in state.items()}, assign=True)
        model.load_state_dict(state, assign=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            train_step(optimizer, F.cross_entropy(model(x), y))

    trace = trace_of(program)

    assert (trace.notes, trace.num_steps) == ((), 5)


class NamedRows(Tensor):
    """Tensor with row names, which cannot be indexed or reshaped."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (Tensor.__getitem__, Tensor.reshape):
            raise ValueError("rows in another form have no names")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_batches_of_a_tensor_subclass_are_recorded(trace_of):
    def program():
        x, y = labeled_rows(96)
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def collate(items):
            data, labels = zip(*items, strict=True)
            return torch.stack(data).as_subclass(NamedRows), torch.stack(labels)

        for batch, labels in DataLoader(TensorDataset(x, y), 32, collate_fn=collate):
            train_step(optimizer, F.cross_entropy(model(batch.as_subclass(Tensor)), labels))

    trace = trace_of(program)

    assert trace.notes == ()
    assert [[f.shape for f in batch.fields] for batch in trace.batches] == 3 * [[(32, 8), (32,)]]
    assert [len({*batch.rows}) for batch in trace.batches] == [32, 32, 32]


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_ragged_and_sparse_batches_are_traced(trace_of, kind):
    def program():
        model = nn.Linear(8, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        batch = (
            torch.nested.nested_tensor(
                [labeled_rows(3 + i % 4)[0] for i in range(8)], layout=torch.jagged
            )
            if kind == "ragged"
            else (labeled_rows(16)[0] * (labeled_rows(16, seed=1)[0] > 0.5)).to_sparse()
        )
        for _ in range(6):
            out = model(batch)
            train_step(optimizer, (out.values() if kind == "ragged" else out).square().mean())

    trace = trace_of(program)

    assert (trace.notes, trace.num_steps) == ((), 6)
