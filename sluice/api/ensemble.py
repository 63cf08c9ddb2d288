"""Networks of several seeds that predict together."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.data.rows.protocol import RowSource
from sluice.evaluation.outputs import predict
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ensemble:
    """Networks of several seeds; their prediction is the mean of their outputs."""

    workload: Workload
    networks: tuple[nn.Module, ...]

    def predict(self, x: Tensor | RowSource) -> Tensor:
        """Return the mean output of all networks (B, ...) for the inputs of B examples.

        Args:
            x: Inputs as in ``Examples.x``, such as those that ``workload.examples`` returns. For a
                table these are windows (B, rows, features).
        """
        return torch.stack([predict(network, x) for network in self.networks]).mean(dim=0)
