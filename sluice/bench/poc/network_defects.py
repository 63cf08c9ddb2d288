"""Networks with one defect each. They are constructed with (D, O, settings).

Shape legend: B = examples, L = sequence length, D = features, O = outputs.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor, nn

from sluice.bench.poc.networks import ConvNet, Mlp
from sluice.models.settings import ModelSettings


class WrongInputSize(Mlp):
    """Expects one feature more than the inputs have."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features + 1, num_outputs, settings)


class OutputWithoutLastAxis(Mlp):
    """Returns (B,) instead of (B, 1), which broadcasts to (B, B) in the loss."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B,)."""
        return super().forward(x).squeeze(-1)


class BatchAsTimeAxis(nn.Module):
    """Has a GRU without batch_first, which treats the batch as the sequence."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.gru = nn.GRU(num_features, settings.hidden)
        self.head = nn.Linear(settings.hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        state, _ = self.gru(x)
        output: Tensor = self.head(state[:, -1])
        return output


class BatchCentredInputs(Mlp):
    """Subtracts the mean of the batch from the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        return super().forward(x - x.mean(dim=0))


class DropoutStaysOn(Mlp):
    """Calls ``nn.functional.dropout`` without ``training``, so it is active in evaluation, too."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        return super().forward(nn.functional.dropout(x, 0.5))


class DividesByZero(Mlp):
    """Divides the output by 0, as by the standard deviation of a constant."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O), with non-finite values."""
        return super().forward(x) / torch.zeros(())


class DetachedBody(ConvNet):
    """Detaches the output of the body, so only the head is trained."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        output: Tensor = self.head(self.body(x).detach())
        return output


class UndeclaredFreeze(Mlp):
    """Freezes one layer without declaring it."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.encoder.requires_grad_(False)


class AllFrozen(Mlp):
    """Freezes every layer."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.requires_grad_(False)


class UnusedLayer(Mlp):
    """Has a layer that forward() does not use."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.skip = nn.Linear(num_features, num_outputs)


class DeadRelu(Mlp):
    """Has a bias of -50, so no unit is ever active."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        nn.init.constant_(self.encoder.bias, -50.0)


class ZeroWeights(Mlp):
    """Has only weights and biases that start at 0."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class ConstantWeights(Mlp):
    """Has only weights and biases that start at 0.1, so all units stay equal."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)


class MaskedSquareRoot(Mlp):
    """Takes the square root of negative values and masks it afterwards, so gradients are NaN."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        state = self.encoder(x[:, -1])
        root = torch.where(state > 0, state.sqrt(), torch.zeros_like(state))
        output: Tensor = self.head(root)
        return output


class IgnoresInput(Mlp):
    """Multiplies the input by a mask of zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        return super().forward(x * torch.zeros(x.shape[-1]))


class RoundedOutput(Mlp):
    """Rounds its output; the gradient passes through the rounding unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O), rounded to integers."""
        output = super().forward(x)
        return output + (output.round() - output).detach()


class EmbeddingPerInputValue(nn.Module):
    """Embeds every input value as if each were a separate category."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, settings.hidden)
        self.head = nn.Linear(num_features * settings.hidden, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        output: Tensor = self.head(self.embedding(x).flatten(1))
        return output


class LayerInPlainList(Mlp):
    """Keeps a layer in a plain list: it is neither trained nor saved."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.unregistered_layers = [nn.Linear(settings.hidden, settings.hidden)]

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        state = torch.relu(self.unregistered_layers[0](self.middle(self.encoder(x[:, -1]))))
        output: Tensor = self.head(state)
        return output


class UnsavedGenerator(Mlp):
    """Draws its dropout masks from a NumPy generator, which no checkpoint contains."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:
        super().__init__(num_features, num_outputs, settings)
        self.rng = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, O)."""
        state = self.middle(self.encoder(x[:, -1]))
        if self.training:
            state = state * torch.from_numpy(self.rng.random(state.shape) < 0.9)
        output: Tensor = self.head(state)
        return output


class TooLarge(nn.Linear):
    """A layer of 2 ** 50 bytes, which is more than any memory."""

    def __init__(self, num_features: int, num_outputs: int, settings: ModelSettings) -> None:  # noqa: ARG002
        super().__init__(2**24, 2**24)


class EndlessForward(Mlp):
    """Iterates without end, as if rounding errors kept it from reaching a tolerance."""

    def forward(self, x: Tensor) -> Tensor:
        """Never return."""
        while True:
            x = x + 0


class SegfaultInForward(Mlp):
    """Reads invalid memory, like a broken native library."""

    def forward(self, x: Tensor) -> Tensor:
        """Never return."""
        ctypes.string_at(0)
        return x
