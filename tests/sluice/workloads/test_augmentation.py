"""Random numbers for augmentation are derived from the seed of each example."""

import torch

from sluice.workloads.augmentation import draw_uniform
from tests.support.trained_sources import ImageWorkload, TokenWorkload


def test_draw_depends_only_on_the_seed_of_its_example():
    seeds = torch.tensor([4, 9, 4, 2**63 - 1])
    drawn = draw_uniform(seeds, 3)

    assert (drawn.dtype, tuple(drawn.shape)) == (torch.float32, (4, 3))
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(draw_uniform(seeds[1:2], 3)[0], drawn[1])
    assert torch.equal(draw_uniform(seeds, 2), drawn[:, :2])


def test_draws_are_uniform_and_uncorrelated():
    drawn = draw_uniform(torch.arange(100_000), 2)

    assert 0 <= float(drawn.min()) < 1e-4
    assert 1 - 1e-4 < float(drawn.max()) < 1
    counts = torch.histc(drawn[:, 0], 10, 0, 1)
    chi_squared = float((counts - 10_000).square().sum() / 10_000)
    assert chi_squared < 28  # 99.9 % quantile with 9 degrees of freedom
    assert abs(float(torch.corrcoef(drawn.T)[0, 1])) < 0.015
    assert abs(float(torch.corrcoef(torch.stack([drawn[1:, 0], drawn[:-1, 0]]))[0, 1])) < 0.015


def test_augmentation_is_none_unless_augment_is_overridden():
    assert TokenWorkload().augmentation is None
    workload = ImageWorkload()
    assert workload.augmentation == workload.augment
