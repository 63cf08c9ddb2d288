"""An inconclusive verdict advises how many seeds or rows would suffice."""

import math

import pytest

from sluice.evaluation.power_advice import PowerInputs, advise_sample_size

EVIDENCE = PowerInputs(
    num_seeds=5,
    num_reference_seeds=0,
    num_rows=1000,
    seed_variance=4.0,
    reference_variance=0.0,
    row_variance=1.0,
)


def test_the_source_with_the_smallest_relative_increase_is_advised():
    # Target variance (2 / 1)**2 / 2 = 2: rows stay at 1, so seeds go from 4 to 1, fourfold.
    advice = advise_sample_size(EVIDENCE, distance=2.0, decisive_distance_se=math.sqrt(2))

    assert advice == "Use more seeds of the candidate: about 20 would be sufficient, now 5."


def test_more_seeds_are_not_advised_for_a_short_window():
    short = PowerInputs(
        num_seeds=5,
        num_reference_seeds=5,
        num_rows=300,
        seed_variance=0.5,
        reference_variance=0.5,
        row_variance=9.0,
    )

    assert "Use more test rows: about 900 would" in advise_sample_size(
        short, distance=2.0, decisive_distance_se=1.0
    )


def test_all_sources_are_advised_if_none_suffices_alone():
    advice = advise_sample_size(EVIDENCE, distance=0.5, decisive_distance_se=1.0)

    assert "about 100 seeds of the candidate (now 5) and about 20000 test rows" in advice
    assert "reference" not in advice


@pytest.mark.parametrize("distance", [0.0, math.nan])
def test_no_sample_size_is_advised_if_it_cannot_be_estimated(distance):
    assert "cannot be estimated" in advise_sample_size(
        EVIDENCE, distance=distance, decisive_distance_se=1.0
    )


def test_at_least_one_more_seed_is_advised_if_evidence_almost_suffices():
    only_seeds = PowerInputs(
        num_seeds=5,
        num_reference_seeds=0,
        num_rows=1000,
        seed_variance=4.0,
        reference_variance=0.0,
        row_variance=0.0,
    )

    advice = advise_sample_size(only_seeds, distance=math.sqrt(3.999999), decisive_distance_se=1.0)

    assert advice == "Use more seeds of the candidate: about 6 would be sufficient, now 5."
