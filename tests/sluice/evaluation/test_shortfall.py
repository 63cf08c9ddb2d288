import math

import pytest

from sluice.evaluation.shortfall import Evidence, advise

EVIDENCE = Evidence(
    num_seeds=5,
    num_reference_seeds=0,
    num_rows=1000,
    seed_variance=4.0,
    reference_variance=0.0,
    row_variance=1.0,
)


def test_the_source_that_has_to_grow_least_is_named_with_its_count():
    # Target variance (2 / 1)**2 / 2 = 2: rows stay at 1, so seeds go from 4 to 1, fourfold.
    said = advise(EVIDENCE, distance=2.0, reach=math.sqrt(2))

    assert said == "It lacks seeds of the candidate: about 20 would settle it, now 5."


def test_more_seeds_cannot_repair_a_short_window():
    short = Evidence(
        num_seeds=5,
        num_reference_seeds=5,
        num_rows=300,
        seed_variance=0.5,
        reference_variance=0.5,
        row_variance=9.0,
    )

    assert "It lacks test rows: about 900 would" in advise(short, distance=2.0, reach=1.0)


def test_when_no_source_is_enough_alone_all_are_named():
    said = advise(EVIDENCE, distance=0.5, reach=1.0)

    assert "about 100 seeds of the candidate (now 5) and about 20000 test rows" in said
    assert "reference" not in said


@pytest.mark.parametrize("distance", [0.0, math.nan])
def test_no_number_is_invented(distance):
    assert "cannot be told" in advise(EVIDENCE, distance=distance, reach=1.0)


def test_evidence_that_almost_suffices_still_asks_for_more():
    only_seeds = Evidence(
        num_seeds=5,
        num_reference_seeds=0,
        num_rows=1000,
        seed_variance=4.0,
        reference_variance=0.0,
        row_variance=0.0,
    )

    said = advise(only_seeds, distance=math.sqrt(3.999999), reach=1.0)

    assert said == "It lacks seeds of the candidate: about 6 would settle it, now 5."
