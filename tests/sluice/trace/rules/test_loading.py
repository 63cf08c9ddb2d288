"""Random numbers that workers share, orders that repeat, and what looks like it (TRACE-5, -6)."""

import pytest

from sluice.bench.tracer.case import Setup
from sluice.bench.tracer.faults.loading import LOADING_CASES
from sluice.trace.rules.library import judge
from tests.support.traced import surroundings as seen

pytestmark = pytest.mark.slow


def run(trace_of, case, folder, *, has_fault):
    setup = Setup(net="mlp", seed=1, folder=folder, has_fault=has_fault)
    return trace_of(lambda: case.program(setup))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", LOADING_CASES, ids=lambda case: case.name)
def test_a_fault_is_named_alone_and_its_twin_is_silent(trace_of, tmp_path, case):
    (found,) = judge(run(trace_of, case, tmp_path, has_fault=True))

    assert {found.fault} == case.answers
    assert found.severity == "error"
    assert abs(found.step - case.starts_at) <= case.within
    assert judge(run(trace_of, case, tmp_path, has_fault=False)) == ()


def test_a_sampler_that_is_never_told_the_epoch_repeats_its_order(trace_of):
    (found,) = judge(trace_of(seen.never_told_the_epoch))

    assert (found.fault, found.severity, found.step) == ("epoch order repeated", "error", 7)
    assert judge(trace_of(seen.told_the_epoch)) == ()


@pytest.mark.parametrize("kind", ["torch", "numpy", "older numpy", "python"])
def test_every_kind_of_generator_is_found_in_the_workers(trace_of, kind):
    (found,) = judge(trace_of(seen.drawing(kind)))

    assert (found.fault, found.severity, found.step) == ("worker streams copied", "error", 1)
    assert "dataset.dataset.generator" in found.what
    assert "2 of 2 workers" in found.what
    assert "all 2 epochs" in found.what


def test_a_generator_of_a_module_is_found_through_the_methods_that_use_it(trace_of):
    (found,) = judge(trace_of(seen.module_drawn))

    assert (found.fault, found.severity, found.step) == ("worker streams copied", "error", 1)
    assert "_NOISE" in found.what
    assert "all 2 epochs" in found.what


def test_one_worker_that_begins_anew_is_asked_about(trace_of):
    (found,) = judge(trace_of(seen.drawing("torch", workers=1)))

    assert (found.fault, found.severity, found.step) == ("worker streams copied", "confirm", 7)


def test_workers_that_stay_share_their_numbers_and_do_not_repeat(trace_of):
    (found,) = judge(trace_of(seen.drawing("torch", persistent_workers=True)))

    assert found.severity == "error"
    assert found.evidence["num_epochs"] == 1


@pytest.mark.parametrize(
    "program",
    [
        seen.reseeded,
        seen.module_seeded,
        seen.seeded_by_row,
        seen.drawn_once,
        seen.never_drawn,
        seen.generator_in_no_worker,
        seen.one_generator_for_all_epochs,
        seen.in_order,
        seen.one_batch_an_epoch,
    ],
    ids=lambda program: program.__name__,
)
def test_what_only_looks_like_it_is_silent(trace_of, program):
    assert [f for f in judge(trace_of(program)) if f.severity == "error"] == []


def test_a_generator_that_is_seeded_anew_for_every_epoch_is_asked_about(trace_of):
    (found,) = judge(trace_of(seen.same_seed_in_every_epoch))

    assert (found.fault, found.severity, found.step) == ("epoch order repeated", "confirm", 7)
