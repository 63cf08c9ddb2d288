"""Is every trainable parameter in the optimizer, exactly once? (POC-2, GRAD-1)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.pluralize import counted
from sluice.base.settings import Record
from sluice.findings.finding import Finding
from sluice.models.parameter_names import listing


class OptimizerReport(Record):
    """Which parameters of a model an optimizer holds, by parameter name."""

    num_trained: int = Field(description="Trainable and in exactly one group.")
    absent: tuple[str, ...] = Field(description="Trainable, but in no group: they never move.")
    repeated: tuple[str, ...] = Field(description="In two groups, or twice in one.")
    frozen: tuple[str, ...] = Field(description="In a group, but requires_grad is False.")
    num_foreign: int = Field(
        description="In a group, but no parameter of this model: those of a replaced layer, or "
        "of something else that is trained along."
    )

    @property
    def complete(self) -> bool:
        """True when every trainable parameter is in exactly one group."""
        return not self.absent and not self.repeated


def validate_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    groups: torch.optim.Optimizer | Sequence[Mapping[str, Any]],
) -> OptimizerReport:
    """Compare the parameters of a model with those of an optimizer, by identity.

    Args:
        named_parameters: As ``model.named_parameters()`` gives them. A tied parameter counts
            once, under its first name.
        groups: Any torch optimizer, or parameter groups; iterators in ``params`` are used up.
    """
    if isinstance(groups, torch.optim.Optimizer):
        groups = groups.param_groups
    counts = Counter(id(parameter) for group in groups for parameter in _of(group["params"]))
    known: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in named_parameters:
        known.setdefault(id(parameter), (name, parameter))
    trainable = {key: name for key, (name, p) in known.items() if p.requires_grad}
    return OptimizerReport(
        num_trained=sum(counts[key] == 1 for key in trainable),
        absent=tuple(name for key, name in trainable.items() if counts[key] == 0),
        repeated=tuple(name for key, (name, _) in known.items() if counts[key] > 1),
        frozen=tuple(
            name for key, (name, _) in known.items() if counts[key] and key not in trainable
        ),
        num_foreign=sum(key not in known for key in counts),
    )


def judge_membership(report: OptimizerReport) -> Finding | None:
    """Return what is wrong with the groups of a workload, or None."""
    numbers = {"num_absent": len(report.absent), "num_repeated": len(report.repeated)}
    if report.absent:
        total = report.num_trained + len(report.absent) + len(report.repeated)
        foreign = (
            f" The groups hold {report.num_foreign} that are no part of the network."
            if report.num_foreign
            else ""
        )
        return Finding(
            outcome="fail",
            summary=f"{len(report.absent)} of {total} trainable parameters are in no parameter "
            f"group: {listing(report.absent)}.{foreign}",
            numbers=numbers,
            kind="not in the optimizer",
        )
    if report.repeated:
        return Finding(
            outcome="fail",
            summary=f"{counted(len(report.repeated), 'parameter')} "
            f"{'is' if len(report.repeated) == 1 else 'are'} given twice in the parameter groups: "
            f"{listing(report.repeated)}.",
            numbers=numbers,
            kind="not in the optimizer",
            cause="Two patterns of names match the same parameter, or a tied one was listed twice.",
            fix="Let the groups of parameter_groups() exclude each other.",
        )
    return None


def _of(params: Any) -> Iterable[Tensor]:
    if isinstance(params, Tensor):
        return [params]
    # torch also takes pairs of name and parameter.
    return (item[1] if isinstance(item, tuple) else item for item in params)
