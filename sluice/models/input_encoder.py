"""Module that encodes the inputs of a network with arrays that were fitted on train rows."""

from collections.abc import Callable, Mapping
from typing import Self

from torch import Tensor, nn

from sluice.data.rows.protocol import ModelInput

Encode = Callable[[ModelInput, Mapping[str, Tensor]], ModelInput]
"""Function of the inputs of a batch and the fitted arrays to the inputs of the network."""

_BUFFER_PREFIX = "state_"
"""Prefix of the buffer names, so that the name of no array collides with a module attribute."""

ENCODER_TENSOR_PREFIX = f"encoder.{_BUFFER_PREFIX}"
"""Prefix of the names of the fitted arrays in the weights of a ``Scaled`` model."""


class InputEncoder(nn.Module):
    """Calls a function of a workload on the inputs, with arrays that the workload has fitted.

    The arrays are buffers, so they are stored with the weights, moved to the device of the network,
    and not trained.

    Args:
        encode: Function that encodes a batch.
        state: Fitted arrays by name.
    """

    def __init__(self, encode: Encode, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._encode = encode
        self._array_names = tuple(state)
        for name, array in state.items():
            self.register_buffer(_BUFFER_PREFIX + name, array.clone())

    @property
    def state(self) -> dict[str, Tensor]:
        """The fitted arrays by name."""
        return {name: self.get_buffer(_BUFFER_PREFIX + name) for name in self._array_names}

    def forward(self, x: ModelInput) -> ModelInput:
        """Return the encoded inputs of a batch."""
        return self._encode(x, self.state)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return an encoder with copies of the arrays and the same function.

        The function is not copied, because its workload may contain an object that cannot be
        copied, such as an open file.
        """
        copied = type(self)(self._encode, self.state)
        copied.train(self.training)
        memo[id(self)] = copied
        return copied
