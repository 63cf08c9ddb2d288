"""Faults between two real ranks, their twins, and similar but correct programs (TRACE-5)."""

import pytest

from sluice.bench.tracer.faults.ranks import RANK_CASES
from sluice.trace.records.batches import SketchRecord
from sluice.trace.rules._helpers.sketches import common_threshold, hash_share_up_to, values_up_to
from sluice.trace.rules.library import judge, judge_ranks
from sluice.trace.trace_reader import find_traces, read_trace
from tests.support.traced import data_parallel
from tests.support.traced.run_ranks import run_in_ranks

pytestmark = pytest.mark.slow

CASES = {
    f"{case.number} {'faulty' if has_fault else 'twin'}": (case.program, {"has_fault": has_fault})
    for case in RANK_CASES
    for has_fault in (True, False)
}
OTHERS = {
    program.__name__: (program, {})
    for program in (
        data_parallel.manual_all_reduce,
        data_parallel.all_reduce_of_one_parameter,
        data_parallel.same_validation_rows_on_all_ranks,
        data_parallel.independent_ranks,
        data_parallel.different_shuffle_per_rank,
        data_parallel.sorted_shards,
        data_parallel.fsdp_with_sampler,
        data_parallel.fully_shard_on_same_rows,
        data_parallel.fsdp_on_same_rows,
    )
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return a function from the key of a program to its findings between ranks and in one rank."""
    folders = run_in_ranks(CASES | OTHERS, tmp_path_factory.mktemp("ranks"))

    def findings(key):
        traces = [read_trace(folder) for folder in find_traces(folders[key])]
        assert [t.start.rank for t in traces] == [0, 1]
        return [*judge_ranks(traces), *judge(traces[0])]

    return findings


@pytest.mark.parametrize("case", RANK_CASES, ids=lambda case: case.name)
def test_a_fault_between_ranks_is_reported_from_its_first_step_on(found, case):
    findings = found(f"{case.number} faulty")

    assert {f.fault for f in findings} == case.correct_causes
    assert {f.severity for f in findings} == {"error"}
    assert all(f.step == 1 for f in findings)


@pytest.mark.parametrize("case", RANK_CASES, ids=lambda case: case.name)
def test_its_twin_has_no_finding(found, case):
    assert found(f"{case.number} twin") == []


@pytest.mark.parametrize(
    "key",
    [
        "manual_all_reduce",
        "same_validation_rows_on_all_ranks",
        "fsdp_with_sampler",
    ],
)
def test_similar_but_correct_ranks_are_not_reported(found, key):
    assert found(key) == []


@pytest.mark.parametrize("key", ["fully_shard_on_same_rows", "fsdp_on_same_rows"])
def test_sharded_networks_on_the_same_rows_are_reported(found, key):
    (only,) = found(key)

    assert (only.fault, only.severity, only.step) == ("missing distributed sampler", "error", 1)


def test_ranks_without_shared_weights_need_confirmation(found):
    (only,) = found("independent_ranks")

    assert (only.fault, only.severity) == ("missing distributed sampler", "confirm")


def test_partly_reduced_gradients_let_the_ranks_diverge(found):
    assert [(f.fault, f.severity) for f in found("all_reduce_of_one_parameter")] == [
        ("weights diverge across ranks", "error")
    ]


def test_all_rows_on_every_rank_are_copies_in_any_order(found):
    (only,) = found("different_shuffle_per_rank")

    assert (only.fault, only.severity) == ("missing distributed sampler", "error")
    assert only.evidence["num_shared"] == only.evidence["num_rows"] == 256
    assert "same order" not in only.what


def test_labels_missing_on_one_rank_are_reported(found):
    (only,) = found("sorted_shards")

    assert (only.fault, only.severity) == ("label skew across ranks", "confirm")
    assert only.what.endswith("for example, rank 0 has no label 2.")


def test_the_seeds_and_the_rows_without_a_rank_are_reported(found):
    (only,) = found("4 faulty")

    # Two halves of two orders: a quarter of the rows are in neither.
    assert 0.15 < only.evidence["num_missing"] / 1437 < 0.35
    assert "1234, 2468" in only.what


def test_sketches_are_compared_up_to_their_common_threshold():
    whole = SketchRecord(values=(-5, 0, 7, 9), is_complete=True)
    part = SketchRecord(values=(-5, 1, 7), is_complete=False)
    limit = common_threshold([whole, part])

    assert limit == 7
    assert values_up_to(limit, whole) & values_up_to(limit, part) == {-5, 7}
    assert hash_share_up_to(common_threshold([whole])) == 1.0
    assert hash_share_up_to(-1) == 0.5
