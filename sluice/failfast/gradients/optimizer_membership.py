"""Check that every trainable parameter is in the optimizer exactly once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.findings.check_outcome import CheckOutcome
from sluice.models.parameter_names import format_names


class OptimizerReport(Record):
    """Parameters of a model that an optimizer contains, by parameter name."""

    num_trained: int = Field(
        description="Number of trainable parameters that are in exactly one group."
    )
    absent: tuple[str, ...] = Field(
        description="Trainable parameters that are in no group and therefore never updated."
    )
    repeated: tuple[str, ...] = Field(
        description="Parameters that are listed more than once in the groups."
    )
    frozen: tuple[str, ...] = Field(
        description="Parameters that are in a group although requires_grad is False."
    )
    num_foreign: int = Field(
        description="Number of parameters in a group that do not belong to this model, such as the "
        "parameters of a replaced layer, or of another model that is trained jointly."
    )

    @property
    def is_complete(self) -> bool:
        """True when every trainable parameter is in exactly one group."""
        return not self.absent and not self.repeated


def validate_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    groups: torch.optim.Optimizer | Sequence[Mapping[str, Any]],
) -> OptimizerReport:
    """Compare the parameters of a model with the parameters of an optimizer, by identity.

    Args:
        named_parameters: Result of ``model.named_parameters()``. A tied parameter counts once,
            under its first name.
        groups: A torch optimizer, or parameter groups; iterators in ``params`` are exhausted.
    """
    if isinstance(groups, torch.optim.Optimizer):
        groups = groups.param_groups
    counts = Counter(id(parameter) for group in groups for parameter in _tensors(group["params"]))
    parameter_by_id: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in named_parameters:
        parameter_by_id.setdefault(id(parameter), (name, parameter))
    trainable_names = {i: name for i, (name, p) in parameter_by_id.items() if p.requires_grad}
    return OptimizerReport(
        num_trained=sum(counts[i] == 1 for i in trainable_names),
        absent=tuple(name for i, name in trainable_names.items() if counts[i] == 0),
        repeated=tuple(name for i, (name, _) in parameter_by_id.items() if counts[i] > 1),
        frozen=tuple(
            name
            for i, (name, _) in parameter_by_id.items()
            if counts[i] and i not in trainable_names
        ),
        num_foreign=sum(i not in parameter_by_id for i in counts),
    )


def judge_membership(report: OptimizerReport) -> CheckOutcome | None:
    """Return a finding if the parameter groups are incomplete or overlap, or None."""
    numbers = {"num_absent": len(report.absent), "num_repeated": len(report.repeated)}
    if report.absent:
        num_repeated = len(set(report.repeated) - set(report.frozen))
        num_trainable = report.num_trained + len(report.absent) + num_repeated
        foreign_note = (
            f" The groups contain {pluralize(report.num_foreign, 'parameter')} outside the network."
            if report.num_foreign
            else ""
        )
        return CheckOutcome(
            outcome="fail",
            summary=f"{len(report.absent):,} of {num_trainable:,} trainable parameters are in no "
            f"parameter group: {format_names(report.absent)}.{foreign_note}",
            numbers=numbers,
            fault="parameters not optimized",
        )
    if report.repeated:
        return CheckOutcome(
            outcome="fail",
            summary=f"{pluralize(len(report.repeated), 'parameter')} "
            f"{'is' if len(report.repeated) == 1 else 'are'} listed twice in the parameter groups: "
            f"{format_names(report.repeated)}.",
            numbers=numbers,
            fault="parameters not optimized",
            cause="Two name patterns match the same parameter, or a tied parameter was listed "
            "twice.",
            fix="Make the groups of parameter_groups() disjoint.",
        )
    return None


def _tensors(params: Any) -> Iterable[Tensor]:
    """Return the parameters of a group, in all forms of ``params`` that torch accepts."""
    if isinstance(params, Tensor):
        return [params]
    # An item may be a pair of name and parameter.
    return (item[1] if isinstance(item, tuple) else item for item in params)
