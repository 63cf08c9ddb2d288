"""TRAIN-1, REPRO-4: one network on two and three real processes, against one process alone."""

import dataclasses
import time

import numpy as np
import pytest

from sluice.base.errors import RankLost, TrainingFailed
from sluice.base.seeding import derive_seed
from tests.support import rank_jobs
from tests.support.rank_jobs import CASES, fit, start_ranks, train_on_rank

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """All that two ranks are asked, in one start of them."""
    found = start_ranks(rank_jobs.run_all_cases, 2, tmp_path_factory.mktemp("two"))
    assert all(isinstance(result, dict) for result in found), found
    return found


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_end_with_the_weights_of_one_process(two, case):
    options = CASES[case]
    one = fit(**options)
    bound = 1e-12 if "dtype" in options else 2e-3 if "precision" in options else 1e-6

    np.testing.assert_allclose(two[0][case]["weights"], one["weights"], rtol=0, atol=bound)
    assert np.array_equal(two[0][case]["weights"], two[1][case]["weights"])


@pytest.mark.parametrize("case", CASES)
def test_every_rank_reports_the_losses_and_norms_of_all_rows(two, case):
    """Steps left out by fp16, its scale, the epoch chosen and the stop are decided alike."""
    one = fit(**CASES[case])["history"]
    rel = 2e-2 if case == "fp16" else 1e-5
    for rank in two:
        assert len(rank[case]["history"]) == len(one)
        for mine, expected in zip(rank[case]["history"], one, strict=True):
            mine, expected = dataclasses.asdict(mine), dataclasses.asdict(expected)
            for name in ("seconds", "precision"):
                del mine[name], expected[name]
            assert mine == pytest.approx(expected, rel=rel, nan_ok=True)


def test_the_cases_show_what_they_are_there_for():
    skipped = [result.skipped_steps for result in fit(**CASES["fp16"])["history"]]
    stopped = len(fit(**CASES["stopped early"])["history"])

    assert sum(skipped) >= 1
    assert stopped < 20


@pytest.mark.parametrize("case", ["float32", "odd"])
def test_the_ranks_see_the_rows_of_one_process_in_its_order(two, case):
    one = fit(**CASES[case])["seen"]
    first, second = (rank[case]["seen"] for rank in two)

    assert [a + b for a, b in zip(first, second, strict=True)] == one


def test_micro_batches_split_a_ranks_own_rows(two):
    assert {len(rows) for rows in two[1]["micro"]["seen"]} == {3, 2}


def test_dropout_differs_from_one_process_and_is_the_same_each_time(two):
    """Every rank draws for its own rows."""
    first, again = two[0]["dropout"]

    assert np.array_equal(first, again)
    assert np.array_equal(first, two[1]["dropout"][0])
    assert not np.allclose(first, fit(dropout=0.3)["weights"], atol=1e-4)


def test_the_first_rank_goes_on_with_the_stream_of_one_process_and_others_have_one_an_epoch(two):
    """TRACE-6: no two ranks and no two epochs of a rank share a stream."""
    assert two[0]["float32"]["seeds"] == [derive_seed(3, "dropout")]
    assert two[1]["float32"]["seeds"] == [derive_seed(3, f"dropout_1_{n}") for n in (1, 2)]


def test_batch_normalisation_is_refused_on_every_rank(two):
    for rank in two:
        assert (
            "ranks_per_training cannot be used with this network: '1' is a" in (rank["batch norm"])
        )


def test_an_error_of_the_first_rank_is_everybodys(two):
    assert [rank["refused"] for rank in two] == ["the first rank's refusal"] * 2


def test_three_ranks_that_go_on_end_with_the_bits_of_three_that_never_stopped(tmp_path):
    """Of three numbers the order of the sum shows; it must not depend on where a run began."""
    for whole, resumed in start_ranks(rank_jobs.resume_in_the_middle, 3, tmp_path):
        assert np.array_equal(whole, resumed)


def test_a_killed_rank_ends_the_other_with_a_plain_error_and_no_hang(tmp_path):
    started = time.monotonic()
    left, killed = start_ranks(rank_jobs.die_in_a_step, 2, tmp_path)

    assert killed is None
    assert isinstance(left, RankLost), left
    assert "rank 0 got no answer from another rank" in left.what
    assert "resumes from its last checkpoint" in left.fix
    assert time.monotonic() - started < 25  # the group's own limit is 30 s


def test_a_rank_that_raises_keeps_its_own_error(tmp_path):
    left, failed = start_ranks(rank_jobs.fail_on, 2, tmp_path, 1)

    assert isinstance(left, RankLost), left
    assert type(failed) is TrainingFailed
    assert failed.what == "this rank's own trouble"


def test_a_fold_run_killed_on_two_ranks_ends_with_the_bits_of_an_uninterrupted_one(specs, tmp_path):
    """REPRO-4: the first rank alone writes; all go on from what it wrote."""
    options = {"kill_at_loss": 14, "only_first_time": str(tmp_path / "died"), "max_epochs": 3}
    (spec,) = (dataclasses.replace(run_spec, num_ranks=2) for run_spec in specs(**options))
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()

    killed = start_ranks(train_on_rank, 2, folders[0], spec)
    (resumed, received), (other, nothing) = start_ranks(train_on_rank, 2, folders[1], spec)
    (again,) = (
        dataclasses.replace(run_spec, num_ranks=2) for run_spec in specs("whole", **options)
    )
    (whole, _), _ = start_ranks(train_on_rank, 2, folders[2], again)

    assert any(result is None for result in killed)
    assert received in (["started", "epoch", "finished"], ["started", "epoch", "epoch", "finished"])
    assert nothing == []
    assert resumed == other
    assert (resumed.weights, resumed.test_metrics) == (whole.weights, whole.test_metrics)
    assert resumed.event_log != ""
