"""Multilayer perceptron, for rows without a sequence."""

from torch import Tensor, nn

from sluice.models.settings import ModelSettings


class MultilayerPerceptron(nn.Module):
    """Sum of a multilayer perceptron and a linear layer on the last row of a window.

    With the linear layer, the network can represent a linear model exactly. In tables, the target
    is often a nearly linear function of the columns.

    Shape legend: B = examples, L = sequence length [rows], D = features, O = outputs.

    Args:
        num_features: D.
        num_outputs: O.
        settings: ``layers`` hidden layers with ``hidden`` units, each followed by ``dropout``.
    """

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = num_features
        for _ in range(settings.layers):
            layers += [nn.Linear(width, settings.hidden), nn.GELU(), nn.Dropout(settings.dropout)]
            width = settings.hidden
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, num_outputs)
        self.linear = nn.Linear(num_features, num_outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (B, O) for windows (B, L, D)."""
        row = x[:, -1]
        output: Tensor = self.head(self.body(row)) + self.linear(row)
        return output
