"""Defines the result of a probe."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

Outcome = Literal["pass", "fail", "insufficient", "skipped"]
"""``insufficient``: the probe ran without a clear result. ``skipped``: the probe does not apply."""


class ProbeResult(Record):
    """Result of one probe, a test of a network, schedule, tokenizer, shards or workload."""

    name: str
    outcome: Outcome
    seen: str = Field(description="What was done and observed, with numbers.")
    numbers: dict[str, float | int | str] = Field(
        default={}, description="The measurements behind the outcome."
    )
    why: str = Field("", description="Likely cause, or why the probe was skipped.")
    fix: str = Field("", description="What to do; empty if no action is required.")


def skipped(name: str, seen: str, *, why: str = "", fix: str = "") -> ProbeResult:
    """Return a result for a probe that does not apply, with the reason."""
    return ProbeResult(name=name, outcome="skipped", seen=seen, why=why, fix=fix)


def failed(
    name: str,
    seen: str,
    why: str,
    fix: str,
    numbers: dict[str, float | int | str],
) -> ProbeResult:
    """Return the result of a probe that found a fault; ``why`` is the likely cause."""
    return ProbeResult(
        name=name,
        outcome="fail",
        seen=seen,
        numbers=numbers,
        why=why,
        fix=fix,
    )


def not_repeatable(name: str) -> ProbeResult:
    """Return an insufficient result, because two passes over the same input differ."""
    return ProbeResult(
        name=name,
        outcome="insufficient",
        seen="Two passes over the same input differ, so the effect of a perturbation cannot be "
        "measured.",
        why="The network is random or stateful in evaluation mode.",
        fix="First correct what the probe 'modes' reports.",
    )


def non_finite_output(name: str) -> ProbeResult:
    """Return an insufficient result, because the unperturbed output is non-finite."""
    return ProbeResult(
        name=name,
        outcome="insufficient",
        seen="The output has NaN or infinite values without any perturbation.",
        why="The weights or the rows are non-finite, or an operation is outside its domain.",
        fix="Inspect the initial weights and the tested rows.",
    )


def no_effect_at_all(name: str, seen: str, numbers: dict[str, float | int | str]) -> ProbeResult:
    """Return an insufficient result, because no perturbation of the input had an effect."""
    return ProbeResult(
        name=name,
        outcome="insufficient",
        seen=seen,
        numbers=numbers,
        why="The output of the network does not depend on its input.",
        fix="Inspect the weights: all weights may be zero, or all units inactive.",
    )
