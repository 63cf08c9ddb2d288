"""Programs that resemble faulty ones but are correct have no error (TRACE-2, 3, 14)."""

import pytest

from sluice.trace.rules.library import judge
from tests.support.traced.near_misses import NEAR_MISSES

QUIET = {"imputes_missing_values": "non-finite input"}
"""Worth a look, and no more."""


COSTLY = (
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


def marked(program):
    marks = pytest.mark.exhaustive if program.__name__ in COSTLY else ()
    return pytest.param(program, marks=marks, id=program.__name__)


@pytest.mark.parametrize("program", [marked(program) for program in NEAR_MISSES])
def test_a_near_miss_has_no_error(trace_of, program):
    trace = trace_of(program)

    assert trace.notes == ()
    found = {(f.fault, f.severity) for f in judge(trace)}
    quiet = QUIET.get(program.__name__)
    assert found == ({(quiet, "warning")} if quiet else set())
