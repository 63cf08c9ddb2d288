"""Faults between two real ranks, their healthy twins, and what looks like one (TRACE-5)."""

import pytest

from sluice.bench.tracer.faults.ranks import RANK_CASES
from sluice.trace.evidence.batches import SketchFact
from sluice.trace.reading import find_traces, read_trace
from sluice.trace.rules.library import judge, judge_ranks
from sluice.trace.sketches import limit_of, share_below, up_to
from tests.support.traced import parallel
from tests.support.traced.ranks import run_in_ranks

pytestmark = pytest.mark.slow

CASES = {
    f"{case.number} {'faulty' if has_fault else 'twin'}": (case.program, {"has_fault": has_fault})
    for case in RANK_CASES
    for has_fault in (True, False)
}
OTHERS = {
    program.__name__: (program, {})
    for program in (
        parallel.gradients_reduced_by_hand,
        parallel.gradients_reduced_by_half,
        parallel.all_judge_on_the_same_rows,
        parallel.alone_together,
        parallel.shuffled_apart,
        parallel.sorted_shards,
        parallel.shards_wrapped_on_rows_of_their_own,
        parallel.shards_on_the_same_rows,
        parallel.shards_wrapped_on_the_same_rows,
    )
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return a function from the key of a program to its findings, between ranks and in one."""
    folders = run_in_ranks(CASES | OTHERS, tmp_path_factory.mktemp("ranks"))

    def findings(key):
        traces = [read_trace(folder) for folder in find_traces(folders[key])]
        assert [t.start.rank for t in traces] == [0, 1]
        return [*judge_ranks(traces), *judge(traces[0])]

    return findings


@pytest.mark.parametrize("case", RANK_CASES, ids=lambda case: case.name)
def test_a_fault_between_ranks_is_named_since_its_first_step(found, case):
    told = found(f"{case.number} faulty")

    assert {f.fault for f in told} == case.answers
    assert {f.severity for f in told} == {"error"}
    assert all(f.step == 1 for f in told)


@pytest.mark.parametrize("case", RANK_CASES, ids=lambda case: case.name)
def test_its_twin_is_silent(found, case):
    assert found(f"{case.number} twin") == []


@pytest.mark.parametrize(
    "key",
    [
        "gradients_reduced_by_hand",
        "all_judge_on_the_same_rows",
        "shards_wrapped_on_rows_of_their_own",
    ],
)
def test_ranks_that_look_alike_and_are_right_are_silent(found, key):
    assert found(key) == []


@pytest.mark.parametrize("kind", ["shards", "shards_wrapped"])
def test_shards_of_one_network_that_learn_from_the_same_rows_are_told(found, kind):
    (only,) = found(f"{kind}_on_the_same_rows")

    assert (only.fault, only.severity, only.step) == ("ranks see the same rows", "error", 1)


def test_ranks_that_share_no_weights_are_asked_about(found):
    (only,) = found("alone_together")

    assert (only.fault, only.severity) == ("ranks see the same rows", "confirm")


def test_gradients_that_are_reduced_in_part_let_the_ranks_diverge(found):
    assert [(f.fault, f.severity) for f in found("gradients_reduced_by_half")] == [
        ("ranks diverge", "error")
    ]


def test_all_rows_on_every_rank_are_copies_in_any_order(found):
    (only,) = found("shuffled_apart")

    assert (only.fault, only.severity) == ("ranks see the same rows", "error")
    assert only.evidence["num_shared"] == only.evidence["num_rows"] == 256
    assert "same order" not in only.what


def test_labels_that_one_rank_lacks_are_named(found):
    (only,) = found("sorted_shards")

    assert (only.fault, only.severity) == ("ranks hold different labels", "confirm")
    assert only.what.endswith("such as: rank 0 has no label 2.")


def test_the_seeds_and_the_rows_that_nobody_has_are_told(found):
    (only,) = found("4 faulty")

    # Two halves of two orders: a quarter of the rows are in neither.
    assert 0.15 < only.evidence["num_missing"] / 1437 < 0.35
    assert "1234, 2468" in only.what


def test_sketches_are_compared_up_to_where_both_are_whole():
    whole = SketchFact(values=(-5, 0, 7, 9), is_whole=True)
    part = SketchFact(values=(-5, 1, 7), is_whole=False)
    limit = limit_of([whole, part])

    assert limit == 7
    assert up_to(limit, whole) & up_to(limit, part) == {-5, 7}
    assert share_below(limit_of([whole])) == 1.0
    assert share_below(-1) == 0.5
