"""Inputs of functional models, found from the autograd graph (TRACE-2)."""

import torch

from sluice.trace.inspection.autograd_graph import graph_nodes
from sluice.trace.inspection.graph_inputs import inputs_of_leaves


def test_a_recurrent_state_without_gradient_is_not_an_input():
    torch.manual_seed(0)
    input_weight, state_weight = (
        torch.randn(4, 3).requires_grad_(),
        torch.randn(3, 3).requires_grad_(),
    )
    series, state = torch.randn(5, 6, 4), torch.randn(5, 3)
    for step in range(6):
        state = torch.tanh(series[:, step] @ input_weight + state @ state_weight)

    (leaf_input,) = inputs_of_leaves([*graph_nodes(state.sum())])

    assert leaf_input.leaf is input_weight
    assert leaf_input.is_left_operand
    assert torch.equal(leaf_input.values, series)
