"""Runs of the fault benchmark, each in its own processes (TRACE-16)."""

import pytest

from sluice.bench.tracer.running import BenchmarkRun, execute_runs
from tests.support.traced.benchmark_cases import (
    exceeds_time_limit,
    exits_silently,
    make_case,
    missing_zero_grad,
    non_finite_gradient,
    raises_error,
    random_weights,
    sum_over_ranks,
)

LIMIT_S = 20.0


def make_run(program, *, has_fault=True, **fields):
    return BenchmarkRun(case=make_case(program, **fields), net="mlp", seed=0, has_fault=has_fault)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of some programs, by name."""
    folder = tmp_path_factory.mktemp("runs")
    jobs = [
        make_run(missing_zero_grad),
        make_run(raises_error, has_fault=False),
        make_run(exits_silently),
        make_run(sum_over_ranks, num_ranks=2),
        make_run(non_finite_gradient),
    ]
    finished = execute_runs(
        jobs, folder, workers=2, with_baselines=True, checks_bits=True, limit_s=LIMIT_S
    )
    found = {run.name: run for run in finished}
    assert list(folder.iterdir()) == []
    return found


@pytest.mark.slow
def test_run_with_fault_has_its_cause_and_compared_weights(results):
    run = results["missing_zero_grad"]

    assert run.failed == ""
    assert run.steps == 6
    assert (run.correct_rank, run.late_steps, run.is_in_time) == (1, 1, True)
    assert run.has_same_bits is True
    assert run.alarms is not None
    assert "always alarm" in run.alarms


@pytest.mark.slow
def test_program_that_raises_unexpectedly_has_failed(results):
    assert results["raises_error"].failed == "the program raised ValueError: its own"


@pytest.mark.slow
def test_process_that_ends_without_output_has_failed(results):
    assert results["exits_silently"].failed == "a process ended without a result: nothing on stderr"


@pytest.mark.slow
def test_two_ranks_form_one_process_group(results):
    run = results["sum_over_ranks"]

    assert run.failed == ""
    assert run.has_same_bits is True
    assert run.correct_rank == 1


@pytest.mark.slow
def test_anomaly_mode_does_not_end_the_run_for_other_baselines(results):
    alarms = results["non_finite_gradient"].alarms

    assert alarms["detect_anomaly"] == 1
    assert alarms["debugger: exploding tensor"] == 1
    assert results["non_finite_gradient"].failed == ""


@pytest.mark.slow
def test_run_beyond_its_time_limit_fails_and_different_weights_are_detected(tmp_path):
    timed_out, random = (
        execute_runs(
            [make_run(exceeds_time_limit)],
            tmp_path,
            workers=1,
            with_baselines=False,
            checks_bits=False,
            limit_s=1.0,
        ),
        execute_runs(
            [make_run(random_weights)], tmp_path, workers=1, with_baselines=False, checks_bits=True
        ),
    )

    assert next(timed_out).failed == "the run took more than 1 s"
    assert next(random).has_same_bits is False
