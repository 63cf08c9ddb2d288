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
OTHER_PROGRAMS = {
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
def findings_of(tmp_path_factory):
    """Return a function that returns the findings of a program between ranks and in rank 0."""
    folders = run_in_ranks(CASES | OTHER_PROGRAMS, tmp_path_factory.mktemp("ranks"))

    def read_findings(key):
        traces = [read_trace(folder) for folder in find_traces(folders[key])]
        assert [t.start.rank for t in traces] == [0, 1]
        return [*judge_ranks(traces), *judge(traces[0])]

    return read_findings


@pytest.mark.parametrize("case", RANK_CASES, ids=lambda case: case.name)
def test_a_fault_between_ranks_is_reported_from_its_first_step_on(findings_of, case):
    reported = findings_of(f"{case.number} faulty")

    assert {f.fault for f in reported} == case.correct_causes
    assert {f.severity for f in reported} == {"error"}
    assert all(f.step == 1 for f in reported)


@pytest.mark.parametrize("case", RANK_CASES, ids=lambda case: case.name)
def test_the_twin_without_the_fault_has_no_finding(findings_of, case):
    assert findings_of(f"{case.number} twin") == []


@pytest.mark.parametrize(
    "key",
    [
        "manual_all_reduce",
        "same_validation_rows_on_all_ranks",
        "fsdp_with_sampler",
    ],
)
def test_similar_but_correct_ranks_are_not_reported(findings_of, key):
    assert findings_of(key) == []


@pytest.mark.parametrize("key", ["fully_shard_on_same_rows", "fsdp_on_same_rows"])
def test_sharded_networks_on_the_same_rows_are_reported(findings_of, key):
    (finding,) = findings_of(key)

    assert (finding.fault, finding.severity, finding.step) == (
        "missing distributed sampler",
        "error",
        1,
    )


def test_ranks_without_shared_weights_need_confirmation(findings_of):
    (finding,) = findings_of("independent_ranks")

    assert (finding.fault, finding.severity) == ("missing distributed sampler", "confirm")


def test_partly_reduced_gradients_are_reported_as_diverging_weights(findings_of):
    assert [(f.fault, f.severity) for f in findings_of("all_reduce_of_one_parameter")] == [
        ("weights diverge across ranks", "error")
    ]


def test_all_rows_on_every_rank_are_reported_in_any_order(findings_of):
    (finding,) = findings_of("different_shuffle_per_rank")

    assert (finding.fault, finding.severity) == ("missing distributed sampler", "error")
    assert finding.evidence["num_shared"] == finding.evidence["num_rows"] == 256
    assert "same order" not in finding.what


def test_labels_missing_on_one_rank_are_reported(findings_of):
    (finding,) = findings_of("sorted_shards")

    assert (finding.fault, finding.severity) == ("label skew across ranks", "confirm")
    assert finding.what.endswith("for example, rank 0 has no label 2.")


def test_different_sampler_seeds_and_the_missing_rows_are_reported(findings_of):
    (finding,) = findings_of("4 faulty")

    # Two halves of two orders: a quarter of the rows are in neither.
    assert 0.15 < finding.evidence["num_missing"] / 1437 < 0.35
    assert "1234, 2468" in finding.what


def test_sketches_are_compared_up_to_their_common_threshold():
    whole = SketchRecord(values=(-5, 0, 7, 9), is_complete=True)
    part = SketchRecord(values=(-5, 1, 7), is_complete=False)
    limit = common_threshold([whole, part])

    assert limit == 7
    assert values_up_to(limit, whole) & values_up_to(limit, part) == {-5, 7}
    assert hash_share_up_to(common_threshold([whole])) == 1.0
    assert hash_share_up_to(-1) == 0.5
