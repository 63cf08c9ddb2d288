"""What met the weights of a network of bare tensors (TRACE-2)."""

import torch

from sluice.trace.graph import nodes_behind
from sluice.trace.leaves import met_by_leaves


def test_a_state_is_no_input_though_it_has_no_gradient_at_first():
    torch.manual_seed(0)
    of_input, of_state = torch.randn(4, 3).requires_grad_(), torch.randn(3, 3).requires_grad_()
    series, state = torch.randn(5, 6, 4), torch.randn(5, 3)
    for step in range(6):
        state = torch.tanh(series[:, step] @ of_input + state @ of_state)

    (met,) = met_by_leaves([*nodes_behind(state.sum())])

    assert met.leaf is of_input
    assert met.is_left
    assert torch.equal(met.values, series)
