"""ROLL-2: the texts of guard readings."""

import pytest

from sluice.rollout.guards import format_evidence


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0352, "0.0352"), (167.2, "167"), (2555.4, "2,555"), (1e304, "1e+304")],
)
def test_evidence_is_formatted_for_people(value: float, said: str) -> None:
    assert format_evidence(value) == said
