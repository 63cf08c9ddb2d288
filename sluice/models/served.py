"""Network that converts its output to the response that a client receives."""

from collections.abc import Callable

from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.rows.protocol import ModelInput, input_length

ServedOutput = Callable[[Tensor, ModelInput], Tensor]
"""Function of the output (B, ...) and the inputs of a network to the response (B, ...)."""


class ServedNetwork(nn.Module):
    """A network followed by the conversion of its output to the response.

    Args:
        network: Trained network.
        served_output: Function that converts the output, usually ``Workload.served_output``.
    """

    def __init__(self, network: nn.Module, served_output: ServedOutput) -> None:
        super().__init__()
        self.network = network
        self.served_output = served_output

    def forward(self, x: ModelInput) -> Tensor:
        """Return the response for each element (B, ...).

        Raises:
            ContractError: The conversion does not return one row for each element.
        """
        response = self.served_output(self.network(x), x)
        num_elements = input_length(x)
        if not isinstance(response, Tensor) or response.ndim < 1 or len(response) != num_elements:
            received = (
                tuple(response.shape) if isinstance(response, Tensor) else type(response).__name__
            )
            raise ContractError(
                f"served_output() must return one row for each of {num_elements} elements, got "
                f"{received}.",
                fix="Return a tensor whose first axis is as long as the first axis of the inputs.",
            )
        return response
