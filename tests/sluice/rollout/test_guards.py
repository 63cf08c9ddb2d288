"""ROLL-2: how guards speak."""

import pytest

from sluice.rollout.guards import amount


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0352, "0.0352"), (167.2, "167"), (2555.4, "2,555"), (1e304, "1e+304")],
)
def test_evidence_is_a_number_that_people_read(value: float, said: str) -> None:
    assert amount(value) == said
