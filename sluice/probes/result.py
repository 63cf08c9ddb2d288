"""The result of a probe."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

Outcome = Literal["pass", "fail", "insufficient", "skipped"]
"""``insufficient``: the probe ran without a clear result; ``skipped``: it does not apply."""


class ProbeResult(Record):
    """Result of one test of a network, a schedule, tokenizers or shards."""

    name: str
    outcome: Outcome
    seen: str = Field(description="What was done and observed, with numbers.")
    numbers: dict[str, float | int | str] = Field(
        default={}, description="The measurements behind the outcome."
    )
    why: str = Field("", description="Likely cause, or why the probe was skipped.")
    fix: str = ""


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
    """Return a failed result."""
    return ProbeResult(
        name=name,
        outcome="fail",
        seen=seen,
        numbers=numbers,
        why=why,
        fix=fix,
    )


def unmoved(name: str, seen: str, numbers: dict[str, float | int | str]) -> ProbeResult:
    """Return an insufficient result: inputs that must have an effect had none either."""
    return ProbeResult(
        name=name,
        outcome="insufficient",
        seen=seen,
        numbers=numbers,
        why="The network does not react to its input.",
        fix="Inspect its weights: all may be zero, or all units inactive.",
    )
