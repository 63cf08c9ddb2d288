"""Are exactly those parameters frozen that the workload declares? (POC-2)."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from sluice.findings.finding import Finding
from sluice.models.parameter_names import listing


def check_frozen(
    named_parameters: Iterable[tuple[str, nn.Parameter]], declared: Sequence[str]
) -> Finding | None:
    """Return what is wrong with the frozen parameters, or None.

    A frozen parameter that no pattern matches fails, as does a pattern that matches no parameter.
    A pattern that matches trainable parameters only warns: what it declares is not so.

    Args:
        named_parameters: As ``network.named_parameters()`` gives them.
        declared: Shell patterns of the names that are frozen on purpose; case matters. Names as
            other messages show them, with "network." in front, are understood as well.
    """
    trainable = {name: parameter.requires_grad for name, parameter in named_parameters}
    undeclared = [
        name
        for name, trains in trainable.items()
        if not trains and not any(_matches(name, pattern) for pattern in declared)
    ]
    if undeclared:
        return Finding(
            outcome="fail",
            summary=f"{len(undeclared)} of {len(trainable)} parameters are frozen and not "
            f"declared: {listing(undeclared)}.",
            numbers={"num_undeclared_frozen": len(undeclared)},
            kind="undeclared frozen",
        )
    matched = {
        pattern: [trains for name, trains in trainable.items() if _matches(name, pattern)]
        for pattern in declared
    }
    unmatched = [pattern for pattern, found in matched.items() if not found]
    if unmatched:
        return Finding(
            outcome="fail",
            summary=f"{_quoted(unmatched)} of frozen_parameters must match a parameter of the "
            f"network, and does not. Its parameters: {listing(trainable)}.",
            numbers={"num_unmatched_patterns": len(unmatched)},
            kind="undeclared frozen",
            cause="A typing mistake, or a renamed layer: what is meant to be frozen trains.",
            fix="Write the pattern as the network's own parameter names, such as 'stem.*'.",
        )
    not_frozen = [pattern for pattern, found in matched.items() if all(found)]
    if not_frozen:
        return Finding(
            outcome="warn",
            summary=f"{_quoted(not_frozen)} of frozen_parameters matches only parameters that "
            "train.",
            numbers={"num_patterns_without_frozen": len(not_frozen)},
            kind="undeclared frozen",
            cause="requires_grad was not switched off, or was switched on again.",
            fix="Set requires_grad to False where the network is built, or drop the pattern.",
        )
    return None


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f"network.{name}", pattern)


def _quoted(patterns: Sequence[str]) -> str:
    return listing([f"'{pattern}'" for pattern in patterns])
