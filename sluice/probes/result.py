"""What a probe answers."""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

Outcome = Literal["pass", "fail", "insufficient", "skipped"]
"""Sound; proven wrong; asked, but what was seen decides nothing; there is nothing to ask."""


class ProbeResult(Record):
    """One question put to a network, a schedule, tokenizers or shards, and the answer."""

    name: str
    requirement: str = Field(description="Such as 'TRACE-4'.")
    outcome: Outcome
    seen: str = Field(description="What was done and what came of it, with numbers.")
    numbers: dict[str, float | int | str] = Field(
        default={}, description="The numbers that the outcome stands on."
    )
    why: str = Field("", description="The likely cause, or why it was not asked.")
    fix: str = ""


def skipped(name: str, requirement: str, seen: str, *, why: str = "", fix: str = "") -> ProbeResult:
    """Return that there was nothing to ask, and the reason."""
    return ProbeResult(
        name=name, requirement=requirement, outcome="skipped", seen=seen, why=why, fix=fix
    )


def failed(
    name: str,
    requirement: str,
    seen: str,
    why: str,
    fix: str,
    numbers: dict[str, float | int | str],
) -> ProbeResult:
    """Return that something is proven wrong."""
    return ProbeResult(
        name=name,
        requirement=requirement,
        outcome="fail",
        seen=seen,
        numbers=numbers,
        why=why,
        fix=fix,
    )


def unmoved(
    name: str, requirement: str, seen: str, numbers: dict[str, float | int | str]
) -> ProbeResult:
    """Return that a change of what must count moved nothing either."""
    return ProbeResult(
        name=name,
        requirement=requirement,
        outcome="insufficient",
        seen=seen,
        numbers=numbers,
        why="The network does not react to its input.",
        fix="Look at its weights: all zero, or units that are never active.",
    )
