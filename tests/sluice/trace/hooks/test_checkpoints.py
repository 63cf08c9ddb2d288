"""State dicts that are saved and loaded."""

import io

import torch
from torch import nn


def train(network):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(torch.ones(3, 3)).sum().backward()
    optimizer.step()


def test_a_state_dict_with_a_sparse_buffer_does_not_end_the_trace(trace_of):
    class GraphNetwork(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("adjacency", torch.eye(3).to_sparse())

        def forward(self, nodes):
            return self.layer(torch.sparse.mm(self.adjacency, nodes))

    def program():
        network = GraphNetwork()
        train(network)
        file = io.BytesIO()
        torch.save(network.state_dict(), file)
        file.seek(0)
        network.load_state_dict(torch.load(file))

    trace = trace_of(program)
    assert not trace.notes
    (load,) = trace.loads
    assert load.content == trace.saves[-1].content != 0


def test_a_state_dict_that_initializes_a_lazy_layer_does_not_end_the_trace(trace_of):
    def program():
        network = nn.LazyLinear(2)
        network.load_state_dict(nn.Linear(3, 2).state_dict())
        train(network)

    trace = trace_of(program)
    assert not trace.notes
    assert [load.num_aliased for load in trace.loads] == [0]
