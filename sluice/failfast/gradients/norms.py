"""Check that the gradients of a model are present, finite and not too large."""

from collections.abc import Iterable

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.findings.catalogue import find_fault


class GradientReport(Record):
    """Gradient norms of a model's trainable parameters, by parameter name."""

    norms: dict[str, float] = Field(description="L2 norm of each existing gradient.")
    missing: tuple[str, ...] = Field(description="Trainable parameters without a gradient.")
    zero: tuple[str, ...] = Field(description="Parameters whose gradient is exactly 0 everywhere.")
    large: tuple[str, ...] = Field(description="Parameters whose gradient norm is above the limit.")
    frozen: tuple[str, ...] = Field(description="Parameters whose requires_grad is False.")

    @property
    def largest(self) -> tuple[str, float]:
        """The parameter with the largest norm, and the norm; ("", 0) without gradients."""
        return max(self.norms.items(), key=lambda item: item[1], default=("", 0.0))

    @property
    def mean_norm(self) -> float:
        """Mean of the norms; 0 without gradients."""
        return sum(self.norms.values()) / len(self.norms) if self.norms else 0.0


def validate_gradients(
    named_parameters: Iterable[tuple[str, nn.Parameter]], *, warn_norm: float
) -> GradientReport:
    """Return the norms of the gradients after a backward pass; raise if a gradient is non-finite.

    The report lists missing, zero and large gradients. The caller decides whether they are faults.

    Args:
        named_parameters: Result of ``model.named_parameters()``.
        warn_norm: Limit above which a norm is listed as large.

    Raises:
        ContractError: A gradient contains NaN or infinity. The message names all such parameters.

    Cost:
        One pass over all gradients and one device synchronisation per parameter. Suitable for a
        gate, not for every training step.
    """
    norms: dict[str, float] = {}
    missing, frozen, non_finite = [], [], []
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            frozen.append(name)
        elif parameter.grad is None:
            missing.append(name)
        elif not bool(torch.isfinite(gradient := _stored_values(parameter.grad)).all()):
            non_finite.append(name)
        else:
            # Use double precision, because squares of large float32 values overflow.
            norms[name] = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if non_finite:
        entry = find_fault("non-finite gradient")
        raise ContractError(
            f"Gradients must be finite, got NaN or infinity in {', '.join(non_finite)} "
            f"({len(non_finite):,} of {len(non_finite) + len(norms):,} gradients).",
            cause=entry.cause,
            fix=entry.fix,
        )
    return GradientReport(
        norms=norms,
        missing=tuple(missing),
        zero=tuple(name for name, norm in norms.items() if norm == 0),
        large=tuple(name for name, norm in norms.items() if norm > warn_norm),
        frozen=tuple(frozen),
    )


def _stored_values(gradient: Tensor) -> Tensor:
    # A sparse embedding has a sparse gradient, whose stored rows suffice: all other rows are 0.
    return gradient.coalesce().values() if gradient.is_sparse else gradient
