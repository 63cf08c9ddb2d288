"""Rows and labels of ranks (TRACE-5)."""

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

from sluice.base.errors import ContractError
from sluice.probes.shards import probe_shards, sampled_rows, split_rows

ROWS = 1_001
LABELS = np.random.default_rng(0).integers(0, 4, ROWS)


def sampler(rank, world, *, seed=0, shuffle=True, drop_last=False):
    return DistributedSampler(
        range(ROWS),
        num_replicas=world,
        rank=rank,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
    )


def ask(rows, labels=LABELS, *, uneven=1):
    return probe_shards(rows, num_rows=ROWS, labels_N=labels, max_uneven_rows=uneven)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [2, 4])
def test_a_distributed_sampler_passes(world, drop_last):
    rows = sampled_rows(lambda r, w: sampler(r, w, drop_last=drop_last), world=world)

    answer = ask(rows)

    assert answer.outcome == "pass", answer.seen
    assert answer.numbers["labels_p_value"] > 1e-6


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("batch", [1, 64, 2_000])
def test_the_trainers_own_split_passes(world, batch):
    rows = split_rows(ROWS, batch_rows=batch, world=world, seed=0)

    assert sorted(row for rank in rows for row in rank) == list(range(ROWS))
    assert ask(rows, uneven=-(-ROWS // batch)).outcome == "pass"


def shuffled(rank, world):
    del world
    return RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            shuffled,
            "1,001 of 1,001 rows are on several ranks (the first is row 0), and 0 on none. "
            "All ranks have the same rows.",
        ),
        (lambda r, w: sampler(r, w, seed=7 * r), "rows are on several ranks"),
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
def test_each_fault_of_membership_is_named(make, said):
    answer = ask(sampled_rows(make, world=2))

    assert answer.outcome == "fail"
    assert said in answer.seen
    assert answer.why
    assert answer.fix


def test_blocks_of_sorted_labels_are_named():
    labels = np.sort(LABELS)
    blocks = [range(500), range(500, ROWS)]

    answer = ask(blocks, labels)

    assert answer.outcome == "fail"
    assert "labels of the 2 ranks have different distributions" in answer.seen
    assert "label 3 has 0.0%, 52.5% of the rows by rank" in answer.seen
    assert ask([range(0, ROWS, 2), range(1, ROWS, 2)], labels).outcome == "pass"


def test_labels_that_are_numbers_are_cut_into_quarters():
    values = np.random.default_rng(1).normal(size=ROWS)
    blocks = [range(500), range(500, ROWS)]

    assert ask(blocks, values).outcome == "pass"
    answer = ask(blocks, np.sort(values))
    assert answer.outcome == "fail"
    assert "quarter" in answer.seen


def test_few_rows_of_a_label_decide_nothing_about_labels():
    labels = np.zeros(ROWS, np.int64)
    labels[:3] = 1

    answer = ask([range(500), range(500, ROWS)], labels)

    assert answer.outcome == "pass"
    assert "labels not compared" in answer.seen


def test_random_shards_are_rarely_called_unlike():
    rng = np.random.default_rng(3)
    for _ in range(50):
        order = rng.permutation(ROWS)
        assert ask([order[:500], order[500:]]).outcome == "pass"


def test_bad_input_is_refused():
    with pytest.raises(ContractError, match="at least two ranks are required, got 1"):
        ask([range(ROWS)])
    with pytest.raises(ContractError, match="rank 1 has 1001"):
        ask([range(500), range(500, ROWS + 1)])
    with pytest.raises(ContractError, match="label for each of 1001 rows is required, got 5"):
        ask([range(500), range(500, ROWS)], LABELS[:5])
