"""Number formats of a training step: fp32, bf16, and fp16 with a loss scale (TRACE-10).

Weights, gradients' sums, the optimizer and the loss itself are in fp32 always; the network's
forward and backward pass are in the lower precision. Gradients of fp16 are small enough to become
0, so the loss is multiplied by a scale, and the gradients are divided by it before clipping. A
step whose gradients overflowed is left out and halves the scale; 2,000 sound ones double it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sluice.training.settings import Precision

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_FAILED = 5
"""Failed steps in a row after which fp16 is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleState:
    """What must be kept between two steps."""

    precision: Precision
    """In effect: fp32 once fp16 was given up."""
    scale: float = 65_536.0
    age_steps: int = 0
    """Sound steps since the scale last changed."""
    failed_in_a_row: int = 0


class Arithmetic:
    """Forward, backward and step in one number format.

    With fp32 these are the plain calls and nothing else.

    Args:
        state: Where to start.
        device: Where the model is.
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
        """What to start from, to go on as if nothing had happened."""
        if self._scaler is None:
            return ScaleState(precision=self.precision)
        scaler = self._scaler.state_dict()
        return ScaleState(
            precision=self.precision,
            scale=float(scaler["scale"]),
            age_steps=int(scaler["_growth_tracker"]),
            failed_in_a_row=self._failed,
        )

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the output of ``model``, in fp32 so that the loss is computed in it."""
        if self.precision == "fp32":
            plain: Tensor = model(x)
            return plain
        low = _FORMATS[self.precision]
        with _supported(low, self._device), torch.autocast(self._device.type, dtype=low):
            output: Tensor = model(x)
        return output.float() if output.dtype == low else output

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss``, times the scale where there is one."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        if self.precision == "fp32":
            scaled.backward()
            return
        with _supported(_FORMATS[self.precision], self._device):  # recomputed layers run here
            scaled.backward()

    def clip(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        clip_norm: float,
    ) -> Tensor:
        """Divide the gradients by the scale, cut them, and return their global norm before."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)
        return nn.utils.clip_grad_norm_(parameters, clip_norm, foreach=True)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Move the weights; return False when the step was left out because it overflowed.

        Five in a row, and all that follows is in fp32.
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
        if self._failed >= _MOST_FAILED:
            self.precision, self._scaler, self._failed = "fp32", None, 0
        return False


@contextlib.contextmanager
def _supported(low: torch.dtype, device: torch.device) -> Iterator[None]:
    """Leave out oneDNN where it has no kernel for recurrent layers, as torch itself has.

    It never has one for fp16, and for bf16 only on processors with AVX-512.
    """
    one_dnn = torch.backends.mkldnn
    before = one_dnn.enabled
    if device.type == "cpu" and (low is torch.float16 or not _one_dnn_has_bf16()):
        # Not mkldnn.flags(): it also sets an option that warns where there is no Intel GPU.
        one_dnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        one_dnn.enabled = before


def _one_dnn_has_bf16() -> bool:
    found: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return found
