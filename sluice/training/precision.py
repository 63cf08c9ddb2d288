"""Number formats of a training step: fp32, bf16, and fp16 with a loss scale.

Weights, accumulated gradients, the optimizer and the loss are always in fp32; the forward and
backward pass of the network use the lower precision. In fp16, small gradients would become 0.
Therefore the loss is multiplied by a scale, and the gradients are divided by the scale before
clipping. If the gradients of a step overflow, the step is skipped and the scale is halved. After
2,000 consecutive steps with finite gradients, the scale is doubled.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.data.rows.protocol import ModelInput
from sluice.training.settings import Precision

_LOW_PRECISION_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MAX_FAILED_STEPS = 5
"""Number of consecutive skipped steps after which training continues in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """State of the loss scale between two steps."""

    precision: Precision
    """Precision in effect: fp32 if fp16 was abandoned."""
    scale: float = 65_536.0
    """Factor by which the loss is multiplied."""
    age_steps: int = 0
    """Number of consecutive steps with finite gradients since the scale last changed."""
    failed_in_a_row: int = 0
    """Number of consecutive skipped steps up to now."""


class MixedPrecision:
    """Forward pass, backward pass and optimizer step with the configured precision.

    In fp32, the methods are unmodified calls of torch.

    Args:
        state: Initial state.
        device: Device of the model.
    """

    def __init__(self, state: ScaleState, device: torch.device) -> None:
        self.precision: Precision = state.precision
        self._device = device
        self._consecutive_failures = state.failed_in_a_row
        self._scaler: torch.amp.GradScaler | None = None
        if state.precision == "fp16":
            self._scaler = torch.amp.GradScaler(device.type)
            restored_state = {"scale": state.scale, "_growth_tracker": state.age_steps}
            self._scaler.load_state_dict(self._scaler.state_dict() | restored_state)

    @property
    def state(self) -> ScaleState:
        """Loss-scale state, with which training can be resumed with the same bits."""
        if self._scaler is None:
            return ScaleState(precision=self.precision)
        scaler = self._scaler.state_dict()
        return ScaleState(
            precision=self.precision,
            scale=float(scaler["scale"]),
            age_steps=int(scaler["_growth_tracker"]),
            failed_in_a_row=self._consecutive_failures,
        )

    def forward(self, model: nn.Module, x: ModelInput) -> Tensor:
        """Return the output of ``model`` in fp32, so that the loss is computed in fp32."""
        if self.precision == "fp32":
            fp32_output: Tensor = model(x)
            return fp32_output
        dtype = _LOW_PRECISION_DTYPES[self.precision]
        with (
            _without_unsupported_one_dnn(dtype, self._device),
            torch.autocast(self._device.type, dtype=dtype),
        ):
            output: Tensor = model(x)
        return output.float() if output.dtype == dtype else output

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of ``loss``, which is first multiplied by the fp16 loss scale."""
        scaled_loss = loss if self._scaler is None else self._scaler.scale(loss)
        if self.precision == "fp32":
            scaled_loss.backward()
            return
        dtype = _LOW_PRECISION_DTYPES[self.precision]
        # Needed here too, because activation checkpointing runs layers again in the backward pass.
        with _without_unsupported_one_dnn(dtype, self._device):
            scaled_loss.backward()

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
        """Update the weights; return False if the step was skipped because gradients overflowed.

        After five consecutive skipped steps, all later steps use fp32.
        """
        scaler = self._scaler
        if scaler is None:
            optimizer.step()
            return True
        scale_before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        was_skipped = scaler.get_scale() < scale_before
        if not was_skipped:
            self._consecutive_failures = 0
            return True
        self._consecutive_failures += 1
        if self._consecutive_failures >= _MAX_FAILED_STEPS:
            self.precision, self._scaler, self._consecutive_failures = "fp32", None, 0
        return False


@contextlib.contextmanager
def _without_unsupported_one_dnn(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Disable oneDNN on CPUs for which it has no kernel for recurrent layers in ``dtype``.

    For fp16, oneDNN has no such kernel. For bf16, it has a kernel only on CPUs with AVX-512.
    """
    one_dnn = torch.backends.mkldnn
    was_enabled = one_dnn.enabled
    if device.type == "cpu" and (dtype is torch.float16 or not _one_dnn_has_bf16()):
        # mkldnn.flags() is not used, because it sets an option that warns without an Intel GPU.
        one_dnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        one_dnn.enabled = was_enabled


def _one_dnn_has_bf16() -> bool:
    is_supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return is_supported
