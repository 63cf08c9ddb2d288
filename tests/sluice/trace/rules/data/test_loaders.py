"""Shared random numbers of workers, repeated orders, and correct loaders (TRACE-5, -6)."""

import pytest

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults.loading import LOADING_CASES
from sluice.trace.rules.library import judge
from tests.support.traced import loading_and_resuming as seen

pytestmark = pytest.mark.slow


def run(trace_of, case, folder, *, has_fault):
    setup = CaseSetup(net="mlp", seed=1, folder=folder, has_fault=has_fault)
    return trace_of(lambda: case.program(setup))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", LOADING_CASES, ids=lambda case: case.name)
def test_a_fault_is_the_only_finding_and_its_twin_has_none(trace_of, tmp_path, case):
    (found,) = judge(run(trace_of, case, tmp_path, has_fault=True))

    assert {found.fault} == case.correct_causes
    assert found.severity == "error"
    assert abs(found.step - case.starts_at) <= case.max_late_steps
    assert judge(run(trace_of, case, tmp_path, has_fault=False)) == ()


def test_a_sampler_without_set_epoch_repeats_its_order(trace_of):
    (found,) = judge(trace_of(seen.without_set_epoch))

    assert (found.fault, found.severity, found.step) == ("repeated epoch order", "error", 7)
    assert judge(trace_of(seen.with_set_epoch)) == ()


@pytest.mark.parametrize("kind", ["torch", "numpy", "older numpy", "python"])
def test_every_kind_of_generator_is_found_in_the_workers(trace_of, kind):
    (found,) = judge(trace_of(seen.draws_from(kind)))

    assert (found.fault, found.severity, found.step) == ("duplicate worker seeds", "error", 1)
    assert "dataset.dataset.generator" in found.what
    assert "2 of 2 workers" in found.what
    assert "all 2 epochs" in found.what


def test_a_generator_of_a_module_is_found_through_the_methods_that_use_it(trace_of):
    (found,) = judge(trace_of(seen.module_generator))

    assert (found.fault, found.severity, found.step) == ("duplicate worker seeds", "error", 1)
    assert "_NOISE" in found.what
    assert "all 2 epochs" in found.what


def test_one_worker_that_restarts_needs_confirmation(trace_of):
    (found,) = judge(trace_of(seen.draws_from("torch", workers=1)))

    assert (found.fault, found.severity, found.step) == ("duplicate worker seeds", "confirm", 7)


def test_persistent_workers_share_their_numbers_and_do_not_repeat(trace_of):
    (found,) = judge(trace_of(seen.draws_from("torch", persistent_workers=True)))

    assert found.severity == "error"
    assert found.evidence["num_epochs"] == 1


@pytest.mark.parametrize(
    "program",
    [
        seen.reseeded_per_worker,
        seen.module_generator_seeded_per_worker,
        seen.seeded_by_row,
        seen.table_drawn_once,
        seen.unused_generator,
        seen.generator_in_no_worker,
        seen.one_generator_for_all_epochs,
        seen.without_shuffle,
        seen.one_batch_per_epoch,
    ],
    ids=lambda program: program.__name__,
)
def test_similar_but_correct_loaders_are_not_reported(trace_of, program):
    assert [f for f in judge(trace_of(program)) if f.severity == "error"] == []


def test_a_generator_seeded_in_every_epoch_needs_confirmation(trace_of):
    (found,) = judge(trace_of(seen.same_seed_in_every_epoch))

    assert (found.fault, found.severity, found.step) == ("repeated epoch order", "confirm", 7)
