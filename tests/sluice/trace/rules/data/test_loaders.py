"""Benchmark faults of loaders, workers with equal random numbers, correct loaders (TRACE-5, -6)."""

import pytest

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults.loading import LOADING_CASES
from sluice.trace.rules.library import judge
from tests.support.traced import loading_and_resuming as programs

pytestmark = pytest.mark.slow


def trace_case(trace_of, case, folder, *, has_fault):
    setup = CaseSetup(net="mlp", seed=1, folder=folder, has_fault=has_fault)
    return trace_of(lambda: case.program(setup))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", LOADING_CASES, ids=lambda case: case.name)
def test_a_fault_is_the_only_finding_and_its_twin_has_none(trace_of, tmp_path, case):
    (found,) = judge(trace_case(trace_of, case, tmp_path, has_fault=True))

    assert {found.fault} == case.correct_causes
    assert found.severity == "error"
    assert abs(found.step - case.starts_at) <= case.max_late_steps
    assert judge(trace_case(trace_of, case, tmp_path, has_fault=False)) == ()


@pytest.mark.parametrize("kind", ["torch", "numpy", "older numpy", "python"])
def test_equal_seeds_are_reported_for_every_kind_of_generator(trace_of, kind):
    (found,) = judge(trace_of(programs.draws_from(kind)))

    assert (found.fault, found.severity, found.step) == ("duplicate worker seeds", "error", 1)
    assert "dataset.dataset.generator" in found.what
    assert "2 of 2 workers" in found.what
    assert "all 2 epochs" in found.what


def test_a_generator_of_a_module_is_found_through_the_methods_that_use_it(trace_of):
    (found,) = judge(trace_of(programs.module_generator))

    assert (found.fault, found.severity, found.step) == ("duplicate worker seeds", "error", 1)
    assert "_NOISE" in found.what
    assert "all 2 epochs" in found.what


def test_one_worker_that_restarts_needs_confirmation(trace_of):
    (found,) = judge(trace_of(programs.draws_from("torch", workers=1)))

    assert (found.fault, found.severity, found.step) == ("duplicate worker seeds", "confirm", 7)


def test_persistent_workers_with_equal_numbers_are_reported_for_one_epoch(trace_of):
    (found,) = judge(trace_of(programs.draws_from("torch", persistent_workers=True)))

    assert found.severity == "error"
    assert found.evidence["num_epochs"] == 1


@pytest.mark.parametrize(
    "program",
    [
        programs.reseeded_per_worker,
        programs.module_generator_seeded_per_worker,
        programs.seeded_by_row,
        programs.table_drawn_once,
        programs.unused_generator,
        programs.generator_in_no_worker,
    ],
    ids=lambda program: program.__name__,
)
def test_similar_but_correct_loaders_are_not_reported(trace_of, program):
    assert [f for f in judge(trace_of(program)) if f.severity == "error"] == []
