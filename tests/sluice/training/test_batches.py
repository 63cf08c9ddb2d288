"""REPRO-3: the order follows from seed and epoch; loader processes change no bit."""

import numpy as np
import pytest
import torch

from sluice.base.seeding import derive_seed, deterministic
from sluice.training.batches import Batches
from sluice.training.loop import train
from sluice.training.row_order import epoch_order
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from tests.sluice.training.test_loop import (
    TRAIN,
    VAL,
    loss_of,
    losses_of,
    make_model,
    timeless,
    vector,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # more processes than this machine has cores
)


def batches(workers=0, *, seed=3, num_rows=100, batch_rows=16):
    rows = Examples(x=TRAIN.x[:num_rows], y=TRAIN.y[:num_rows], rows=np.arange(num_rows))
    return Batches(rows, batch_rows=batch_rows, seed=seed, device=CPU, workers=workers)


def test_the_order_is_that_of_the_seed_and_epoch_written_out():
    generator = torch.Generator().manual_seed(derive_seed(3, "order_2"))

    def order(**place):
        return epoch_order(50, **place).part(0, 50)

    assert torch.equal(order(seed=3, epoch=2), torch.randperm(50, generator=generator))
    assert not torch.equal(order(seed=3, epoch=2), order(seed=3, epoch=1))
    assert not torch.equal(order(seed=3, epoch=2), order(seed=4, epoch=2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_with_and_without_workers_the_batches_are_the_same(workers):
    alone, several = batches(), batches(workers)
    for epoch in (1, 2, 5):
        pairs = list(zip(alone.iter_epoch(epoch), several.iter_epoch(epoch), strict=True))
        assert len(pairs) == alone.steps_per_epoch == 7
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


@pytest.mark.slow
def test_training_with_workers_ends_with_the_same_bits():
    """Dropout draws from the global generators: the loader must leave them alone."""

    def fitted(workers):
        model = make_model()
        settings = TrainSettings(max_epochs=3, batch_rows=16, loader_workers=workers)
        with deterministic():
            history = list(train(model, loss_of, losses_of, TRAIN, VAL, settings, seed=3))
        return vector(model), timeless(history)

    (alone, expected), (several, history) = fitted(0), fitted(2)

    assert torch.equal(alone, several)
    assert history == expected


@pytest.mark.parametrize(("num_rows", "sizes"), [(100, [16] * 6 + [4]), (96, [16] * 6), (5, [5])])
def test_sizes_are_those_of_the_batches(num_rows, sizes):
    some = batches(num_rows=num_rows)

    assert some.sizes().tolist() == sizes == [len(y) for _, y in some.iter_epoch(1)]
    assert (some.steps_per_epoch, some.max_rows) == (len(sizes), max(sizes))


def test_the_data_seed_moves_the_order_alone():
    """Other batches, yet the same initial weights and the same dropout."""

    def fitted(**options):
        seen = []

        def spy(output, y):
            seen.append((output.detach(), y))
            return loss_of(output, y)

        model = make_model()
        settings = TrainSettings(max_epochs=1, batch_rows=16)
        list(train(model, spy, losses_of, TRAIN, VAL, settings, seed=3, **options))
        return vector(model), torch.cat([y for _, y in seen])

    (same, order), (base, usual), (moved, other) = (
        fitted(data_seed=3),
        fitted(),
        fitted(data_seed=4),
    )

    assert torch.equal(same, base)
    assert torch.equal(order, usual)
    assert not torch.equal(usual, other)
    assert not torch.equal(base, moved)
    expected = epoch_order(100, seed=4, epoch=1).part(0, 100)
    assert torch.equal(other, TRAIN.y[expected])
