"""Check that exactly the parameters that the workload declares as frozen are frozen."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from sluice.findings.check_outcome import CheckOutcome
from sluice.models.parameter_names import format_names


def check_frozen(
    named_parameters: Iterable[tuple[str, nn.Parameter]], frozen_patterns: Sequence[str]
) -> CheckOutcome | None:
    """Return a finding if the frozen parameters differ from the declared parameters, or None.

    A frozen parameter that matches no pattern is a failure, and so is a pattern that matches no
    parameter. A pattern that matches only trainable parameters is a warning.

    Args:
        named_parameters: Result of ``network.named_parameters()``.
        frozen_patterns: Case-sensitive shell patterns of intentionally frozen parameters. Names
            with the prefix "network.", as in other messages of the gate, are also accepted.
    """
    requires_grad_by_name = {name: parameter.requires_grad for name, parameter in named_parameters}
    undeclared_names = [
        name
        for name, requires_grad in requires_grad_by_name.items()
        if not requires_grad and not any(_matches(name, pattern) for pattern in frozen_patterns)
    ]
    if undeclared_names:
        return CheckOutcome(
            outcome="fail",
            summary=f"{len(undeclared_names):,} of {len(requires_grad_by_name):,} parameters are "
            f"frozen and not declared: {format_names(undeclared_names)}.",
            numbers={"num_undeclared_frozen": len(undeclared_names)},
            fault="unintended freeze",
        )
    flags_by_pattern = {
        pattern: [
            requires_grad
            for name, requires_grad in requires_grad_by_name.items()
            if _matches(name, pattern)
        ]
        for pattern in frozen_patterns
    }
    unmatched_patterns = [pattern for pattern, flags in flags_by_pattern.items() if not flags]
    if unmatched_patterns:
        return CheckOutcome(
            outcome="fail",
            summary="No parameter of the network matches "
            f"{_format_patterns(unmatched_patterns)} of frozen_parameters. The parameters are: "
            f"{format_names(requires_grad_by_name)}.",
            numbers={"num_unmatched_patterns": len(unmatched_patterns)},
            fault="unintended freeze",
            cause="The pattern has a typo, or a layer was renamed. Parameters that should be "
            "frozen are trained.",
            fix="Use patterns of the network's parameter names, such as 'stem.*'.",
        )
    trainable_patterns = [pattern for pattern, flags in flags_by_pattern.items() if all(flags)]
    if trainable_patterns:
        return CheckOutcome(
            outcome="warn",
            summary=f"Only trainable parameters match {_format_patterns(trainable_patterns)} of "
            "frozen_parameters.",
            numbers={"num_patterns_without_frozen": len(trainable_patterns)},
            fault="unintended freeze",
            cause="requires_grad was not set to False, or was set to True again.",
            fix="Set requires_grad to False where the network is built, or remove the pattern.",
        )
    return None


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"network.{name}", pattern)


def _format_patterns(patterns: Sequence[str]) -> str:
    return format_names([f"'{pattern}'" for pattern in patterns])
