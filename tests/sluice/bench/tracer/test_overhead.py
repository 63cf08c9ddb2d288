"""The measurement of the tracer's cost (TRACE-1)."""

import pytest

from sluice.bench.tracer.overhead import measure_overhead
from sluice.trace.settings import TraceSettings
from tests.support import paced

pytestmark = pytest.mark.slow


def measured(folder, program, *, runs=1, turns=2):
    (found,) = measure_overhead(
        folder,
        runs=runs,
        turns=turns,
        programs={"one": program},
        settings=TraceSettings(),
        clock=paced.clock,
    )
    return found


@pytest.mark.exhaustive
def test_the_ratio_is_that_of_the_times_of_steps(tmp_path):
    found = measured(tmp_path, paced.slower_when_traced, runs=2, turns=4)

    assert found.ratio == found.low == found.high == 1.25
    assert found.plain_us == 1e6
    assert (found.runs, found.turns) == (2, 4)
    assert found.has_same_weights


def test_other_weights_are_seen(tmp_path):
    assert not measured(tmp_path, paced.other_when_traced).has_same_weights


def test_a_program_that_dies_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="the program one ended before its last turn"):
        measured(tmp_path, paced.dies_in_its_turn)
