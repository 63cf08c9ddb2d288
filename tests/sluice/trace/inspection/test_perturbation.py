"""Perturbations of networks whose number of outputs differs from run to run (TRACE-4)."""

import torch
from torch import nn

from sluice.trace.inspection.perturbation import (
    perturb_later_tokens,
    perturb_padding,
    perturb_weights,
)


class FewerOutputs(nn.Module):
    """Returns one output fewer in each call, as a network with early exits may do."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.num_outputs = 10

    def forward(self, ids):
        self.num_outputs -= 1
        return [self.embedding(ids)] * self.num_outputs


def test_networks_with_a_varying_number_of_outputs_are_not_compared():
    network, generator = FewerOutputs(), torch.Generator().manual_seed(1)
    ids = torch.randint(1, 20, (6, 12), generator=generator)
    ids[:, 9:] = 0  # padding
    arguments = ((ids,), {})

    assert perturb_later_tokens(network, arguments, ids) is None
    assert perturb_padding(network, arguments) is None
    assert perturb_weights(network, arguments, ["embedding.weight"], [8]) is None
