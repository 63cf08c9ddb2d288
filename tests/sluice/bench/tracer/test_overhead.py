"""The measurement of the overhead of the tracer (TRACE-1)."""

import pytest

from sluice.bench.tracer.overhead import measure_overhead
from sluice.trace.settings import TraceSettings
from tests.support import paced

pytestmark = pytest.mark.slow


def measure_program(folder, program, *, runs=1, turns=2):
    (found,) = measure_overhead(
        folder,
        num_processes=runs,
        num_turns=turns,
        programs={"one": program},
        settings=TraceSettings(),
        clock=paced.clock,
    )
    return found


@pytest.mark.exhaustive
def test_ratio_is_that_of_the_step_times(tmp_path):
    found = measure_program(tmp_path, paced.slower_when_traced, runs=2, turns=4)

    assert found.ratio == found.low == found.high == 1.25
    assert found.plain_us == 1e6
    assert (found.runs, found.turns) == (2, 4)
    assert found.has_same_weights


def test_different_weights_are_detected(tmp_path):
    assert not measure_program(tmp_path, paced.different_weights_when_traced).has_same_weights


def test_program_that_dies_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="the process of program one ended without a result"):
        measure_program(tmp_path, paced.dies_after_some_steps)
