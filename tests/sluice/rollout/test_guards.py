"""Texts of guard readings (ROLL-2)."""

import pytest

from sluice.rollout.evidence import GuardName, initial_evidence
from sluice.rollout.guards import describe_readings, format_evidence
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import GuardReading


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0352, "0.0352"), (167.2, "167"), (999.7, "1,000"), (2555.4, "2,555"), (1e304, "1e+304")],
)
def test_evidence_is_formatted_with_few_digits(value: float, expected: str) -> None:
    assert format_evidence(value) == expected


@pytest.mark.parametrize(
    ("guard", "faults", "expected"),
    [
        ("errors", 1, "1 error in 0 requests of the challenger, 3 in 0 of production"),
        ("timeouts", 1, "1 answer after the deadline in 0 requests"),
        ("slower", 2, "2 answers above the latency limit in 0 requests"),
    ],
)
def test_text_of_a_reading_contains_the_faults_of_both_arms_and_the_evidence(
    guard: GuardName, faults: int, expected: str
) -> None:
    reading = GuardReading(
        guard=guard, evidence=200.0, limit=167.0, challenger=faults, production=3, verdict="breach"
    )

    text = describe_readings([reading], initial_evidence(RolloutSettings()))

    assert text.startswith(expected)
    assert text.endswith("evidence 200, limit 167")
