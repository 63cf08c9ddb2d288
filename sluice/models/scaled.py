"""Model that includes the scaling of its inputs and outputs, which is fitted on train rows."""

from typing import Self

import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import (
    ModelInput,
    RowSource,
    describe_input,
    gather,
    gather_tensor,
    spread_rows,
)
from sluice.models.input_encoder import InputEncoder

_MAX_FIT_ROWS = 8192
"""Maximum number of rows that a scaling is fitted on, for encoded inputs and for a row source that
is not a tensor. The error of a mean is then about a hundredth of a standard deviation. The number
affects the bits of the result, so it is not a setting."""


class Scaled(nn.Module):
    """A network between fixed scalings, which maps raw inputs to raw predictions.

    Shape legend: N = examples, B = batch, ... = any further axes, D = features, O = outputs.

    The means and standard deviations are buffers, so they are stored with the weights, and
    predictions need no other file.

    Args:
        network: Network that maps standardised inputs (B, ..., D) to standardised outputs (B, O),
            or (B,) if O is 1. A dict of inputs is passed by keyword.
        num_features: D.
        num_outputs: O.
        scale_inputs: Whether to standardise the inputs. If not, the network gets them unchanged, in
            any dtype.
        scale_target: Whether to convert the outputs from standardised units to target units.
        encoder: Encodes the inputs before they are standardised; None for inputs without encoding.
    """

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        num_features: int,
        num_outputs: int,
        scale_inputs: bool,
        scale_target: bool,
        encoder: InputEncoder | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.encoder = encoder
        self.num_features = num_features
        self.num_outputs = num_outputs
        self.scale_inputs = scale_inputs
        self.scale_target = scale_target
        self.register_buffer("x_mean", torch.zeros(num_features))
        self.register_buffer("x_std", torch.ones(num_features))
        self.register_buffer("y_mean", torch.zeros(num_outputs))
        self.register_buffer("y_std", torch.ones(num_outputs))

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        x: Tensor | RowSource,
        y: Tensor | RowSource,
        *,
        num_outputs: int,
        scale_inputs: bool,
        scale_target: bool,
        encoder: InputEncoder | None = None,
    ) -> Self:
        """Wrap ``network`` with the statistics of the train rows only.

        A column that is constant in the train rows gets the standard deviation 1. So its scaled
        value is 0 there, and stays moderate in later rows. The data checks report constant columns.
        For encoded inputs and for a row source that is not a tensor, the statistics are computed
        from at most 8,192 evenly spaced rows.

        Args:
            network: Network to wrap.
            x: Inputs of the train rows (N, ..., D), or a row source.
            y: Targets of the train rows (N, O), or (N,) for a single output. If they are not
                scaled, they may have any shape.
            num_outputs: O.
            scale_inputs: Whether to standardise the inputs.
            scale_target: Whether the network predicts the standardised target.
            encoder: Encodes the inputs before they are standardised.

        Raises:
            ContractError: ``scale_inputs`` is True, and the inputs are a dict.
        """
        first_input = _encode(gather(x, torch.arange(1)), encoder)
        if scale_inputs and not isinstance(first_input, Tensor):
            raise ContractError(
                f"scale_inputs requires one tensor as input, got {describe_input(first_input)}.",
                cause="A dict of inputs holds ids and masks, which must not be scaled.",
                fix="Set scale_inputs = False in the workload, and scale inside the network.",
            )
        scaled = cls(
            network,
            num_features=first_input.shape[-1] if isinstance(first_input, Tensor) else 0,
            num_outputs=num_outputs,
            scale_inputs=scale_inputs,
            scale_target=scale_target,
            encoder=encoder,
        )
        if scale_inputs:
            scaled.x_mean, scaled.x_std = _mean_and_std(_inputs_for_fit(x, encoder))
        if scale_target:
            targets = _values_for_fit(y)
            scaled.y_mean, scaled.y_std = _mean_and_std(
                targets if targets.ndim > 1 else targets[:, None]
            )
        return scaled

    def forward(self, x: ModelInput) -> Tensor:
        """Return predictions (B, O) or (B,) in target units for raw inputs (B, ..., D)."""
        x = _encode(x, self.encoder)
        if isinstance(x, dict):
            output: Tensor = self.network(**x)
        else:
            if self.scale_inputs:
                x = (x - self.x_mean) / self.x_std
            output = self.network(x)
        if self.scale_target:
            output = output * self.y_std + self.y_mean
        return output


def _encode(x: ModelInput, encoder: InputEncoder | None) -> ModelInput:
    if encoder is None:
        return x
    encoded: ModelInput = encoder(x)
    return encoded


def _inputs_for_fit(source: Tensor | RowSource, encoder: InputEncoder | None) -> Tensor:
    """Return the inputs on which the scaling is fitted; with an encoder, evenly spaced rows."""
    if encoder is None:
        return _values_for_fit(source)
    rows = spread_rows(len(source), _MAX_FIT_ROWS)
    encoded = _encode(gather(source, rows), encoder)
    assert isinstance(encoded, Tensor), "Scaled.fit() refuses a dict"
    return encoded


def _values_for_fit(source: Tensor | RowSource) -> Tensor:
    """Return the values on which the scaling is fitted: a whole tensor, or evenly spaced rows."""
    if isinstance(source, Tensor):
        return source
    rows = spread_rows(len(source), _MAX_FIT_ROWS)
    return gather_tensor(source, rows, what="values to be scaled")


def _mean_and_std(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column; 1 for a constant column."""
    # Mean and standard deviation are computed in double precision, because the standard deviation
    # may be small compared with the mean, such as 1 for prices of about 1e4.
    rows = values.reshape(-1, values.shape[-1]).double()
    mean, std = rows.mean(dim=0), rows.std(dim=0, correction=0)
    # Because of rounding, the standard deviation of a constant column is not 0, but about 1e-16 of
    # its mean.
    std = torch.where(std > 1e-12 * mean.abs(), std, torch.ones_like(std))
    return mean.float(), std.float()
