"""Runs of the fault benchmark, each in processes of its own (TRACE-16)."""

import pytest

from sluice.bench.tracer.running import BenchmarkRun, execute_runs
from tests.support.traced.benchmark_cases import (
    carries,
    case,
    dies,
    differs,
    not_a_number,
    sleeps,
    stops,
    together,
)

LIMIT_S = 20.0


def job(program, *, has_fault=True, **fields):
    return BenchmarkRun(case=case(program, **fields), net="mlp", seed=0, has_fault=has_fault)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what each of a few programs came to, by its name."""
    folder = tmp_path_factory.mktemp("runs")
    jobs = [
        job(carries),
        job(stops, has_fault=False),
        job(dies),
        job(together, ranks=2),
        job(not_a_number),
    ]
    done = execute_runs(
        jobs, folder, workers=2, with_baselines=True, checks_bits=True, limit_s=LIMIT_S
    )
    found = {run.name: run for run in done}
    assert list(folder.iterdir()) == []
    return found


@pytest.mark.slow
def test_a_fault_is_judged_from_its_trace_and_the_weights_are_compared(results):
    run = results["carries"]

    assert run.failed == ""
    assert run.steps == 6
    assert (run.correct_rank, run.late, run.is_in_time) == (1, 1, True)
    assert run.has_same_bits is True
    assert run.alarms is not None
    assert "always alarm" in run.alarms


@pytest.mark.slow
def test_a_program_that_raises_without_a_right_to_has_failed(results):
    assert results["stops"].failed == "the program raised ValueError: its own"


@pytest.mark.slow
def test_a_process_that_ends_without_a_word_has_failed(results):
    assert results["dies"].failed == "a process ended without a result: nothing on stderr"


@pytest.mark.slow
def test_two_ranks_are_one_group(results):
    run = results["together"]

    assert run.failed == ""
    assert run.has_same_bits is True
    assert run.correct_rank == 1


@pytest.mark.slow
def test_anomaly_mode_is_one_baseline_and_the_others_see_the_program_go_on(results):
    alarms = results["not_a_number"].alarms

    assert alarms["detect_anomaly"] == 1
    assert alarms["debugger: exploding tensor"] == 1
    assert results["not_a_number"].failed == ""


@pytest.mark.slow
def test_a_run_beyond_its_time_is_ended_and_other_weights_are_seen(tmp_path):
    late, other = (
        execute_runs(
            [job(sleeps)], tmp_path, workers=1, with_baselines=False, checks_bits=False, limit_s=1.0
        ),
        execute_runs([job(differs)], tmp_path, workers=1, with_baselines=False, checks_bits=True),
    )

    assert next(late).failed == "the run took more than 1 s"
    assert next(other).has_same_bits is False
