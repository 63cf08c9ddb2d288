"""The probe of the rows and labels that ranks receive (TRACE-5)."""

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

from sluice.base.errors import ContractError
from sluice.probes.shards import probe_shards, sampled_rows, split_rows

ROWS = 1_001
LABELS = np.random.default_rng(0).integers(0, 4, ROWS)


def make_sampler(rank, world, *, seed=0, shuffle=True, drop_last=False):
    return DistributedSampler(
        range(ROWS),
        num_replicas=world,
        rank=rank,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
    )


def run_probe(rows, labels=LABELS, *, max_row_difference=1):
    return probe_shards(rows, num_rows=ROWS, labels_N=labels, max_row_difference=max_row_difference)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [2, 4])
def test_a_distributed_sampler_passes(world, drop_last):
    rows = sampled_rows(lambda r, w: make_sampler(r, w, drop_last=drop_last), world_size=world)

    result = run_probe(rows)

    assert result.outcome == "pass", result.seen
    assert result.numbers["labels_p_value"] > 1e-6


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("batch", [1, 64, 2_000])
def test_the_split_of_the_trainer_passes(world, batch):
    rows = split_rows(ROWS, batch_rows=batch, world_size=world, seed=0)

    assert sorted(row for rank in rows for row in rank) == list(range(ROWS))
    assert run_probe(rows, max_row_difference=-(-ROWS // batch)).outcome == "pass"


def shuffle_all_rows(rank, world):
    del world
    return RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            shuffle_all_rows,
            "1,001 of 1,001 rows are on several ranks (the first is row 0), and "
            "0 are on no rank. All ranks have the same rows.",
        ),
        (lambda r, w: make_sampler(r, w, seed=7 * r), "rows are on several ranks"),
        (
            lambda r, w: range(r, ROWS, w + 1),
            "333 of 1,001 rows are on no rank; the first is row 2",
        ),
        (
            lambda r, _: range(0, 900) if r == 0 else range(900, ROWS),
            "Rank 0 has 900 rows and rank 1 has 101",
        ),
        (lambda r, w: [*range(r, ROWS, w), *range(r, 40, w)], "rows are duplicated within a rank"),
    ],
)
def test_each_fault_of_the_row_assignment_is_reported(make, message):
    result = run_probe(sampled_rows(make, world_size=2))

    assert result.outcome == "fail"
    assert message in result.seen
    assert result.why
    assert result.fix


def test_blocks_of_sorted_labels_are_reported():
    labels = np.sort(LABELS)
    blocks = [range(500), range(500, ROWS)]

    result = run_probe(blocks, labels)

    assert result.outcome == "fail"
    assert "labels of the 2 ranks have different distributions" in result.seen
    assert "shares of label 3 by rank: 0.0%, 52.5%" in result.seen
    assert run_probe([range(0, ROWS, 2), range(1, ROWS, 2)], labels).outcome == "pass"


def test_float_labels_are_compared_by_quarters():
    values = np.random.default_rng(1).normal(size=ROWS)
    blocks = [range(500), range(500, ROWS)]

    assert run_probe(blocks, values).outcome == "pass"
    result = run_probe(blocks, np.sort(values))
    assert result.outcome == "fail"
    assert "quarter" in result.seen


def test_many_text_labels_are_compared_by_quarters():
    labels = np.array([f"label {number % 125:03}" for number in range(ROWS)])
    blocks = [range(500), range(500, ROWS)]

    assert run_probe(blocks, labels).outcome == "pass"
    assert run_probe(blocks, np.sort(labels)).outcome == "fail"


def test_labels_with_few_rows_are_not_compared():
    labels = np.zeros(ROWS, np.int64)
    labels[:3] = 1

    result = run_probe([range(500), range(500, ROWS)], labels)

    assert result.outcome == "pass"
    assert "labels not compared" in result.seen


def test_random_shards_are_not_reported():
    rng = np.random.default_rng(3)
    for _ in range(50):
        order = rng.permutation(ROWS)
        assert run_probe([order[:500], order[500:]]).outcome == "pass"


def test_invalid_arguments_are_rejected():
    with pytest.raises(ContractError, match="at least two ranks are required, got 1"):
        run_probe([range(ROWS)])
    with pytest.raises(ContractError, match="rank 1 has 1001"):
        run_probe([range(500), range(500, ROWS + 1)])
    with pytest.raises(ContractError, match="label for each of 1001 rows is required, got 5"):
        run_probe([range(500), range(500, ROWS)], LABELS[:5])
