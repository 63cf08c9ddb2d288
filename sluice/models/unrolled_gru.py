"""A GRU with the values and gradients of torch's and about a third of its time on a processor.

torch records every small operation of every row of the window for the backward pass. Here the
backward pass is written out: all that does not depend on the gradient of the state is computed for
the whole window at once, so that each row is left with three operations, and the gradients of the
weights are one product each instead of one per row.

Shape legend: L = sequence length [rows], B = examples, D = features, H = hidden units.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class UnrolledGRU(nn.GRU):
    """``nn.GRU`` with the same parameters and, but for rounding, the same results.

    Where the written-out form does not apply it is torch's own: on a GPU, under autocast, with a
    state to start from, packed sequences, without bias, in both directions.
    """

    def forward(self, input: Any, hx: Tensor | None = None) -> Any:
        """Return the states of the last layer and the last state of every layer."""
        if hx is not None or not self._applies(input):
            return super().forward(input, hx)
        states_LBD = input.transpose(0, 1) if self.batch_first else input
        last = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                states_LBD = functional.dropout(states_LBD, self.dropout, self.training)
            states_LBD = self._layer(states_LBD, layer)
            last.append(states_LBD[-1])
        return states_LBD.transpose(0, 1) if self.batch_first else states_LBD, torch.stack(last)

    def _applies(self, x: Any) -> bool:
        return (
            isinstance(x, Tensor)
            and x.ndim == 3
            and x.numel() > 0
            and x.device.type == "cpu"
            and x.dtype in (torch.float32, torch.float64)
            and x.dtype == self.weight_ih_l0.dtype
            and x.shape[-1] == self.input_size
            and bool(self.bias)
            and not self.bidirectional
            and not torch.is_autocast_enabled("cpu")
        )

    def _layer(self, x_LBD: Tensor, layer: int) -> Tensor:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        parameters = [getattr(self, f"{name}_l{layer}") for name in names]
        if torch.is_grad_enabled():
            states: Tensor = _Recurrence.apply(x_LBD, *parameters)  # type: ignore[no-untyped-call]
            return states
        return _run(x_LBD, *parameters)[0][1:]


def _run(
    x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return states (L + 1, B, H), gates r and z (L, B, 2H), n, and the part of n that r gates.

    ``r, z = sigmoid(W x + b + U h + c)``, ``n = tanh(W x + b + r (U h + c))``,
    ``h = (1 - z) n + z h``, with the weights of r, z and n one above the other in W and U.
    """
    length, rows, width = x.shape[0], x.shape[1], weight_hh.shape[1]
    both = slice(2 * width)
    gates = functional.linear(x, weight_ih[both], bias_ih[both] + bias_hh[both])
    new = functional.linear(x, weight_ih[2 * width :], bias_ih[2 * width :])
    gated = new.new_empty(length, rows, width)
    states = new.new_zeros(length + 1, rows, width)
    to_gates, to_gated = weight_hh[both].t(), weight_hh[2 * width :].t()
    bias_gated = bias_hh[2 * width :]
    steps = zip(
        states[:-1].unbind(),
        states[1:].unbind(),
        gates.unbind(),
        *(part.unbind() for part in gates.split(width, dim=-1)),
        new.unbind(),
        gated.unbind(),
        strict=True,
    )
    for before, after, r_and_z, r, z, n, part in steps:
        r_and_z.addmm_(before, to_gates).sigmoid_()
        torch.addmm(bias_gated, before, to_gated, out=part)
        n.addcmul_(r, part).tanh_()
        torch.lerp(n, before, z, out=after)
    return states, gates, new, gated


class _Recurrence(torch.autograd.Function):
    """The states (L, B, H) of one layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        states, gates, new, gated = _run(x, *parameters)
        ctx.save_for_backward(x, states, gates, new, gated, *parameters[:2])
        return states[1:]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Go back through the rows; ``d`` is the gradient of the loss by the state."""
        x, states, gates, new, gated, weight_ih, weight_hh = ctx.saved_tensors
        before, width = states[:-1], weight_hh.shape[1]
        factors, by_new = _factors(before, gates, new, gated)
        d = grad[-1]
        rows = zip(
            factors.unbind(),
            factors.flatten(2).unbind(),
            by_new.unbind(),
            gates[..., width:].unbind(),
            [None, *grad[:-1].unbind()],
            strict=True,
        )
        for parts, flat, part_new, keep, more in reversed(list(rows)):
            parts.mul_(d.unsqueeze(1))
            part_new.mul_(d)
            if more is not None:
                d = torch.addcmul(more, d, keep).addmm_(flat, weight_hh)
        sums = factors.view(-1, 3 * width)
        by_weight_hh, by_bias_hh = _product(before, sums), sums.sum(dim=0)
        factors[..., 2, :] = by_new  # the rest is the same on the side of the inputs
        by_x = (sums @ weight_ih).view(x.shape) if ctx.needs_input_grad[0] else None
        return by_x, _product(x, sums), by_weight_hh, sums.sum(dim=0), by_bias_hh


def _product(rows: Tensor, sums: Tensor) -> Tensor:
    # This way round: the other takes up to four times as long with few columns.
    return (rows.reshape(len(sums), -1).t() @ sums).t()


def _factors(before: Tensor, gates: Tensor, new: Tensor, gated: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the gradient by a row's state is multiplied with to give those by its parts.

    In place where it can be: fresh memory costs more than the arithmetic.

    Returns:
        Factors (L, B, 3, H) for r, z and the part that r gates, before their activations, and
        (L, B, H) for n.
    """
    r, z = gates.split(new.shape[-1], dim=-1)
    factors = new.new_empty(*new.shape[:-1], 3, new.shape[-1])
    by_r, by_z, by_gated = factors.unbind(dim=-2)
    torch.sub(before, new, out=by_r)
    torch.addcmul(z, z, z, value=-1, out=by_gated)  # z (1 - z)
    torch.mul(by_r, by_gated, out=by_z)
    by_new = torch.addcmul(new.new_ones(()), new, new, value=-1)
    by_new.addcmul_(by_new, z, value=-1)  # (1 - z) (1 - n^2)
    torch.mul(by_new, r, out=by_gated)
    torch.addcmul(gated, gated, r, value=-1, out=by_r).mul_(by_gated)
    return factors, by_new
