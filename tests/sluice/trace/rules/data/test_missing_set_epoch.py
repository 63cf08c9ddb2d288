"""Shuffling loaders that repeat the same order in every epoch (TRACE-5)."""

from itertools import cycle, islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sluice.trace.rules.data.missing_set_epoch import MISSING_SET_EPOCH
from sluice.trace.rules.library import judge
from tests.support.traced import loading_and_resuming as programs
from tests.support.traced.small_programs import labeled_rows, train_step

FAULT = "repeated epoch order"


def make_program(sampler_epochs, *, num_rows=16, max_batches=(None,), trains=True):
    """Return a program whose sampler gets these epochs, one per iteration; None: not set.

    The iterations end after ``max_batches`` batches, alternately.
    """

    def program():
        rows = TensorDataset(*labeled_rows(num_rows))
        sampler = DistributedSampler(rows, num_replicas=1, rank=0)
        loader, model = DataLoader(rows, batch_size=4, sampler=sampler), nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch, max_num in zip(sampler_epochs, cycle(max_batches), strict=False):
            if epoch is not None:
                sampler.set_epoch(epoch)
            for x, y in islice(loader, max_num):
                if trains:
                    train_step(optimizer, F.cross_entropy(model(x), y))
                else:
                    with torch.no_grad():
                        model(x)
        train_step(optimizer, model(torch.ones(4, 8)).square().mean())

    return program


def test_a_sampler_without_set_epoch_is_reported(trace_of):
    (found,) = judge(trace_of(programs.without_set_epoch))

    assert (found.fault, found.severity, found.step) == (FAULT, "error", 7)
    assert judge(trace_of(programs.with_set_epoch)) == ()


def test_every_repeated_epoch_is_counted(trace_of):
    (found,) = MISSING_SET_EPOCH(trace_of(make_program([None, None, None])))

    assert (found.fault, found.severity, found.step) == (FAULT, "error", 5)
    assert "(DistributedSampler, whose epoch is always 0): in 2 of 2 comparisons" in found.what
    assert found.evidence == {"num_repeated": 2, "num_compared": 2}


@pytest.mark.parametrize(
    ("max_batches", "expected"),
    # The second epoch has 8 or 4 rows; 8 are required.
    [((3, None), [("error", 4)]), ((None, 2), [("error", 5)]), ((None, 1), [])],
)
def test_epochs_that_the_program_ends_early_are_compared_by_their_first_rows(
    trace_of, max_batches, expected
):
    found = MISSING_SET_EPOCH(trace_of(make_program([None, None], max_batches=max_batches)))

    assert [(f.severity, f.step) for f in found] == expected


def test_a_generator_seeded_in_every_epoch_needs_confirmation(trace_of):
    (found,) = judge(trace_of(programs.same_seed_in_every_epoch))

    assert (found.fault, found.severity, found.step) == (FAULT, "confirm", 7)


@pytest.mark.parametrize(
    ("sampler_epochs", "expected"),
    # One of two comparisons is half of them; one of three is less.
    [([0, 0, 1], [("confirm", 5)]), ([0, 0, 1, 2], []), ([0, 1, 2], [])],
)
def test_half_of_the_epochs_must_repeat_an_order(trace_of, sampler_epochs, expected):
    found = MISSING_SET_EPOCH(trace_of(make_program(sampler_epochs)))

    assert [(f.severity, f.step) for f in found] == expected


@pytest.mark.parametrize(("num_rows", "num_findings"), [(7, 0), (8, 1)])
def test_epochs_of_few_rows_are_not_compared(trace_of, num_rows, num_findings):
    trace = trace_of(make_program([None, None], num_rows=num_rows))

    assert len(MISSING_SET_EPOCH(trace)) == num_findings


@pytest.mark.parametrize(
    "program",
    [
        programs.one_generator_for_all_epochs,
        programs.without_shuffle,
        programs.one_batch_per_epoch,
        make_program([None, None], trains=False),
    ],
    ids=["one generator", "not shuffled", "one batch", "only evaluated"],
)
def test_similar_but_correct_loaders_are_not_reported(trace_of, program):
    assert MISSING_SET_EPOCH(trace_of(program)) == ()
