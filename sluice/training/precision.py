"""Number formats of a training step: fp32, bf16, and fp16 with a loss scale.

Weights, accumulated gradients, the optimizer and the loss are always in fp32; the forward and
backward pass of the network use the lower precision. Small gradients become 0 in fp16, so the loss
is multiplied by a scale, and the gradients are divided by it before clipping. A step whose
gradients overflow is skipped and halves the scale; 2,000 finite steps double it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.data.rows.protocol import ModelInput
from sluice.training.settings import Precision

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MAX_FAILED_STEPS = 5
"""Consecutive failed steps after which fp16 is abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """Loss-scale state between two steps."""

    precision: Precision
    """Precision in effect: fp32 once fp16 was abandoned."""
    scale: float = 65_536.0
    age_steps: int = 0
    """Finite steps since the scale last changed."""
    failed_in_a_row: int = 0


class MixedPrecision:
    """Forward pass, backward pass and optimizer step in one number format.

    With fp32 these are the plain calls.

    Args:
        state: Initial state.
        device: Device of the model.
    """

    def __init__(self, state: ScaleState, device: torch.device) -> None:
        self.precision: Precision = state.precision
        self._device = device
        self._failed = state.failed_in_a_row
        self._scaler: torch.amp.GradScaler | None = None
        if state.precision == "fp16":
            self._scaler = torch.amp.GradScaler(device.type)
            kept = {"scale": state.scale, "_growth_tracker": state.age_steps}
            self._scaler.load_state_dict(self._scaler.state_dict() | kept)

    @property
    def state(self) -> ScaleState:
        """State from which training can be resumed exactly."""
        if self._scaler is None:
            return ScaleState(precision=self.precision)
        scaler = self._scaler.state_dict()
        return ScaleState(
            precision=self.precision,
            scale=float(scaler["scale"]),
            age_steps=int(scaler["_growth_tracker"]),
            failed_in_a_row=self._failed,
        )

    def forward(self, model: nn.Module, x: ModelInput) -> Tensor:
        """Return the output of ``model`` in fp32, so that the loss is computed in fp32."""
        if self.precision == "fp32":
            plain: Tensor = model(x)
            return plain
        low = _FORMATS[self.precision]
        with (
            _without_unsupported_one_dnn(low, self._device),
            torch.autocast(self._device.type, dtype=low),
        ):
            output: Tensor = model(x)
        return output.float() if output.dtype == low else output

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of ``loss``, multiplied by the loss scale if there is one."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        if self.precision == "fp32":
            scaled.backward()
            return
        with _without_unsupported_one_dnn(
            _FORMATS[self.precision], self._device
        ):  # recomputed layers run here
            scaled.backward()

    def clip(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        clip_norm: float,
    ) -> Tensor:
        """Unscale and clip the gradients, and return their global norm before clipping."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        return nn.utils.clip_grad_norm_(parameters, clip_norm, foreach=True)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the weights; return False if the step was skipped because of an overflow.

        After five consecutive overflows all later steps use fp32.
        """
        scaler = self._scaler
        if scaler is None:
            optimizer.step()
            return True
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if not scaler.get_scale() < before:
            self._failed = 0
            return True
        self._failed += 1
        if self._failed >= _MAX_FAILED_STEPS:
            self.precision, self._scaler, self._failed = "fp32", None, 0
        return False


@contextlib.contextmanager
def _without_unsupported_one_dnn(low: torch.dtype, device: torch.device) -> Iterator[None]:
    """Disable oneDNN where it has no kernel for recurrent layers.

    It has none for fp16, and for bf16 only on CPUs with AVX-512.
    """
    one_dnn = torch.backends.mkldnn
    before = one_dnn.enabled
    if device.type == "cpu" and (low is torch.float16 or not _one_dnn_has_bf16()):
        # Not mkldnn.flags(): it also sets an option that warns without an Intel GPU.
        one_dnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        one_dnn.enabled = before


def _one_dnn_has_bf16() -> bool:
    found: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return found
