"""Are the gradients of a model present, finite and of a sane size? (GRAD-1)."""

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.findings.responses import respond


class GradientReport(Record):
    """Norms of the trainable parameters' gradients, by parameter name."""

    norms: dict[str, float] = Field(description="L2 norm of each gradient that is there.")
    missing: tuple[str, ...] = Field(description="Trainable, but without a gradient.")
    zero: tuple[str, ...] = Field(description="With a gradient that is exactly 0 everywhere.")
    large: tuple[str, ...] = Field(description="With a norm above the limit.")
    frozen: tuple[str, ...] = Field(description="Not trainable (requires_grad is False).")

    @property
    def largest(self) -> tuple[str, float]:
        """The parameter with the largest norm, and the norm; ("", 0) when there is none."""
        return max(self.norms.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def mean_norm(self) -> float:
        """Mean of the norms; 0 when there is none."""
        return sum(self.norms.values()) / len(self.norms) if self.norms else 0.0


def validate_gradients(
    named_parameters: Iterable[tuple[str, nn.Parameter]], *, warn_norm: float
) -> GradientReport:
    """Measure the gradients after a backward pass; refuse any that is not finite.

    Missing, zero and large gradients are in the report, by name, for the caller to judge.

    Args:
        named_parameters: As ``model.named_parameters()`` gives them.
        warn_norm: Norms above this are listed as large.

    Raises:
        ContractError: A gradient holds NaN or infinity; every such parameter is named.

    Cost:
        One pass over all gradients and one wait for the device per parameter: for a gate, not for
        every step.
    """
    norms: dict[str, float] = {}
    missing, frozen, not_finite = [], [], []
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            frozen.append(name)
        elif parameter.grad is None:
            missing.append(name)
        elif not bool(torch.isfinite(gradient := _values(parameter.grad)).all()):
            not_finite.append(name)
        else:
            # In double precision: squares of large float32 values overflow.
            norms[name] = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if not_finite:
        response = respond("NaN gradients")
        raise ContractError(
            f"Gradients must be finite, got NaN or infinity in {', '.join(not_finite)} "
            f"({len(not_finite)} of {len(not_finite) + len(norms)} gradients).",
            cause=response.cause,
            fix=response.fix,
        )
    return GradientReport(
        norms=norms,
        missing=tuple(missing),
        zero=tuple(name for name, norm in norms.items() if norm == 0),
        large=tuple(name for name, norm in norms.items() if norm > warn_norm),
        frozen=tuple(frozen),
    )


def _values(gradient: Tensor) -> Tensor:
    # A sparse embedding gives a sparse gradient: the rows that are not there are 0.
    return gradient.coalesce().values() if gradient.is_sparse else gradient
