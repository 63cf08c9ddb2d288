"""REPRO-3: row order depends on seed and epoch only; loader processes change no bit."""

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
    drop_seconds,
    loss_of,
    losses_of,
    make_model,
    vector,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create"  # more processes than this machine has cores
)


def make_batches(workers=0, *, seed=3, num_rows=100, batch_rows=16):
    rows = Examples(x=TRAIN.x[:num_rows], y=TRAIN.y[:num_rows], rows=np.arange(num_rows))
    return Batches(rows, batch_rows=batch_rows, seed=seed, device=CPU, workers=workers)


def test_epoch_order_is_the_seeded_permutation():
    generator = torch.Generator().manual_seed(derive_seed(3, "order_2"))

    def make_order(**seed_and_epoch):
        return epoch_order(50, **seed_and_epoch).part(0, 50)

    assert torch.equal(make_order(seed=3, epoch=2), torch.randperm(50, generator=generator))
    assert not torch.equal(make_order(seed=3, epoch=2), make_order(seed=3, epoch=1))
    assert not torch.equal(make_order(seed=3, epoch=2), make_order(seed=4, epoch=2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_loader_workers_do_not_change_batches(workers):
    alone, several = make_batches(), make_batches(workers)
    for epoch in (1, 2, 5):
        pairs = list(zip(alone.iter_epoch(epoch), several.iter_epoch(epoch), strict=True))
        assert len(pairs) == alone.steps_per_epoch == 7
        assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


@pytest.mark.slow
def test_loader_workers_do_not_change_trained_weights():
    """Dropout draws from the global generators, so the loader must not advance them."""

    def fit(workers):
        model = make_model()
        settings = TrainSettings(max_epochs=3, batch_rows=16, loader_workers=workers)
        with deterministic():
            history = list(train(model, loss_of, losses_of, TRAIN, VAL, settings, seed=3))
        return vector(model), drop_seconds(history)

    (alone, expected), (several, history) = fit(0), fit(2)

    assert torch.equal(alone, several)
    assert history == expected


@pytest.mark.parametrize(("num_rows", "sizes"), [(100, [16] * 6 + [4]), (96, [16] * 6), (5, [5])])
def test_sizes_match_the_batches(num_rows, sizes):
    loader_batches = make_batches(num_rows=num_rows)

    assert (
        loader_batches.sizes().tolist()
        == sizes
        == [len(y) for _, y in loader_batches.iter_epoch(1)]
    )
    assert (loader_batches.steps_per_epoch, loader_batches.max_rows) == (len(sizes), max(sizes))


def test_data_seed_changes_only_the_row_order():
    """The batches differ; initial weights and dropout are the same."""

    def fit(**options):
        seen = []

        def spy(output, y):
            seen.append((output.detach(), y))
            return loss_of(output, y)

        model = make_model()
        settings = TrainSettings(max_epochs=1, batch_rows=16)
        list(train(model, spy, losses_of, TRAIN, VAL, settings, seed=3, **options))
        return vector(model), torch.cat([y for _, y in seen])

    (same, order), (base, usual), (moved, other) = (
        fit(data_seed=3),
        fit(),
        fit(data_seed=4),
    )

    assert torch.equal(same, base)
    assert torch.equal(order, usual)
    assert not torch.equal(usual, other)
    assert not torch.equal(base, moved)
    expected = epoch_order(100, seed=4, epoch=1).part(0, 100)
    assert torch.equal(other, TRAIN.y[expected])
