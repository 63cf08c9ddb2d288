"""Programs that resemble faulty ones but are correct have no error (TRACE-2, 3, 14)."""

import pytest

from sluice.trace.rules.library import judge
from tests.support.traced.near_misses import NEAR_MISSES

EXPECTED_WARNINGS = {"imputes_missing_values": "non-finite input"}
"""Programs with one warning and no other finding."""

SLOW_PROGRAMS = (
    "contrastive_views",
    "imbalanced_classes",
    "two_tasks_on_one_batch",
    "training_accuracy_and_validation",
    "negative_correlation",
    "autoencoder",
    "distillation",
    "noise_on_training_rows",
    "left_padded",
    "accumulated_sums",
)


def mark_if_slow(program):
    marks = pytest.mark.exhaustive if program.__name__ in SLOW_PROGRAMS else ()
    return pytest.param(program, marks=marks, id=program.__name__)


@pytest.mark.parametrize("program", [mark_if_slow(program) for program in NEAR_MISSES])
def test_a_near_miss_has_at_most_its_expected_warning(trace_of, program):
    trace = trace_of(program)

    assert trace.notes == ()
    found = {(f.fault, f.severity) for f in judge(trace)}
    expected_warning = EXPECTED_WARNINGS.get(program.__name__)
    assert found == ({(expected_warning, "warning")} if expected_warning else set())
