"""Recurrent networks: GRU and LSTM with a linear head on the last hidden state."""

from typing import Literal

from torch import Tensor, nn

from sluice.models.settings import ModelSettings

Cell = Literal["gru", "lstm"]


class Recurrent(nn.Module):
    """Recurrent network that predicts from the hidden state after the window's last row.

    Shape legend: B = examples, L = sequence length [rows], D = features, O = outputs.
    """

    def __init__(
        self, num_features: int, num_outputs: int, settings: ModelSettings, *, cell: Cell
    ) -> None:
        super().__init__()
        core_type = nn.GRU if cell == "gru" else nn.LSTM
        self.core = core_type(
            num_features,
            settings.hidden,
            num_layers=settings.layers,
            # torch applies this dropout only between layers, and warns for a single layer.
            dropout=settings.dropout if settings.layers > 1 else 0.0,
            batch_first=True,
        )
        self.drop = nn.Dropout(settings.dropout)
        self.head = nn.Linear(settings.hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (B, O) for windows (B, L, D)."""
        states, _ = self.core(x)
        output: Tensor = self.head(self.drop(states[:, -1]))
        return output
