"""TRAIN-1, REPRO-4: data-parallel training on 2 and 3 processes equals a single process."""

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
def two_ranks(tmp_path_factory):
    """Results of all cases on two ranks, computed in one start of the processes."""
    found = start_ranks(rank_jobs.run_all_cases, 2, tmp_path_factory.mktemp("two"))
    assert all(isinstance(result, dict) for result in found), found
    return found


@pytest.mark.parametrize("case", CASES)
def test_weights_of_two_ranks_equal_those_of_one_process(two_ranks, case):
    options = CASES[case]
    one = fit(**options)
    bound = 1e-12 if "dtype" in options else 2e-3 if "precision" in options else 1e-6

    np.testing.assert_allclose(two_ranks[0][case]["weights"], one["weights"], rtol=0, atol=bound)
    assert np.array_equal(two_ranks[0][case]["weights"], two_ranks[1][case]["weights"])


@pytest.mark.parametrize("case", CASES)
def test_every_rank_reports_the_losses_and_norms_of_all_rows(two_ranks, case):
    """All ranks agree on skipped fp16 steps, loss scale, best epoch and early stopping."""
    one = fit(**CASES[case])["history"]
    rel = 2e-2 if case == "fp16" else 1e-5
    for rank in two_ranks:
        assert len(rank[case]["history"]) == len(one)
        for result, expected in zip(rank[case]["history"], one, strict=True):
            result, expected = dataclasses.asdict(result), dataclasses.asdict(expected)
            for name in ("seconds", "precision"):
                del result[name], expected[name]
            assert result == pytest.approx(expected, rel=rel, nan_ok=True)


def test_cases_skip_fp16_steps_and_stop_early():
    skipped = [result.skipped_steps for result in fit(**CASES["fp16"])["history"]]
    stopped = len(fit(**CASES["stopped early"])["history"])

    assert sum(skipped) >= 1
    assert stopped < 20


@pytest.mark.parametrize("case", ["float32", "odd"])
def test_ranks_together_read_rows_in_the_order_of_one_process(two_ranks, case):
    one = fit(**CASES[case])["batch_targets"]
    first, second = (rank[case]["batch_targets"] for rank in two_ranks)

    assert [a + b for a, b in zip(first, second, strict=True)] == one


def test_micro_batches_split_the_rows_of_a_rank(two_ranks):
    assert {len(rows) for rows in two_ranks[1]["micro"]["batch_targets"]} == {3, 2}


def test_dropout_on_ranks_is_reproducible_but_differs_from_one_process(two_ranks):
    """Each rank draws dropout masks for its own rows."""
    first, again = two_ranks[0]["dropout"]

    assert np.array_equal(first, again)
    assert np.array_equal(first, two_ranks[1]["dropout"][0])
    assert not np.allclose(first, fit(dropout=0.3)["weights"], atol=1e-4)


def test_first_rank_keeps_the_dropout_seed_and_others_get_one_per_epoch(two_ranks):
    """TRACE-6: no two ranks and no two epochs of a rank share a stream."""
    assert two_ranks[0]["float32"]["seeds"] == [derive_seed(3, "dropout")]
    assert two_ranks[1]["float32"]["seeds"] == [derive_seed(3, f"dropout_1_{n}") for n in (1, 2)]


def test_batch_norm_is_rejected_on_every_rank(two_ranks):
    for rank in two_ranks:
        assert (
            "ranks_per_training cannot be used with this network: '1' is a" in (rank["batch norm"])
        )


def test_error_of_the_first_rank_is_raised_on_all_ranks(two_ranks):
    assert [rank["refused"] for rank in two_ranks] == ["the first rank's refusal"] * 2


def test_three_resumed_ranks_have_the_bits_of_an_uninterrupted_run(tmp_path):
    """A sum of three floats depends on its order, which must not depend on the resume step."""
    for whole, resumed in start_ranks(rank_jobs.resume_in_the_middle, 3, tmp_path):
        assert np.array_equal(whole, resumed)


def test_killed_rank_ends_the_other_with_rank_lost_and_no_hang(tmp_path):
    started = time.monotonic()
    survivor, killed = start_ranks(rank_jobs.die_in_a_step, 2, tmp_path)

    assert killed is None
    assert isinstance(survivor, RankLost), survivor
    assert "rank 0 got no answer from another rank" in survivor.what
    assert "resumes from its last checkpoint" in survivor.fix
    assert time.monotonic() - started < 25  # the group's own limit is 30 s


def test_failing_rank_raises_its_own_error(tmp_path):
    survivor, failed = start_ranks(rank_jobs.fail_on, 2, tmp_path, 1)

    assert isinstance(survivor, RankLost), survivor
    assert type(failed) is TrainingFailed
    assert failed.what == "this rank's own trouble"


def test_fold_run_killed_on_two_ranks_resumes_with_identical_bits(specs, tmp_path):
    """REPRO-4: only the first rank writes checkpoints; all ranks resume from them."""
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
