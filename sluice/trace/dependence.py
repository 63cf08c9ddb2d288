"""Whether targets depend on inputs at all: a permutation test that is sensitive to any relation."""

from collections.abc import Sequence

import torch
from torch import Tensor

_PERMUTATIONS = 60
_WIDTHS = (0.5, 1.0)
"""Of the Gaussian kernel, of the median distance."""


def dependence(features_ND: Tensor, targets: Sequence[float], *, is_class: bool) -> float:
    """Return by how many deviations targets follow the features more than shuffled ones do.

    The statistic is that of Hilbert and Schmidt for a linear and two Gaussian kernels; the largest
    of the three is returned. Without any relation it is below 3 in 98 of 100 cases.

    Args:
        features_ND: N rows of D features.
        targets: One for each row.
        is_class: They are class ids, whose order means nothing.

    Cost:
        Of order N * N * 60 multiplications for each kernel and class.

    Source:
        Gretton et al. (2005), "Measuring Statistical Dependence with Hilbert-Schmidt Norms".
    """
    features = _standardised(features_ND.float())
    wanted = _target_features(torch.tensor(targets, dtype=torch.float64), is_class=is_class)
    drawn = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(targets), generator=drawn) for _ in range(_PERMUTATIONS)]
    columns_NPC = torch.stack([wanted, *(wanted[order] for order in orders)], 1)
    return max(_deviations(kernel, columns_NPC) for kernel in _kernels(features))


def _standardised(features: Tensor) -> Tensor:
    varied = features[:, features.std(0) > 0]
    centred = (varied - varied.mean(0)) / varied.std(0)
    return centred.clamp(-5, 5)  # one far row must not be the whole statistic


def _target_features(targets: Tensor, *, is_class: bool) -> Tensor:
    if is_class:
        found = torch.nn.functional.one_hot(targets.unique(return_inverse=True)[1]).double()
    else:
        rank = targets.argsort().argsort().double() / max(len(targets) - 1, 1) - 0.5
        found = torch.stack([rank, rank.square()], 1)
    centred = found - found.mean(0)
    return (centred / centred.square().mean(0).sqrt().clamp(min=1e-12)).float()


def _kernels(features: Tensor) -> list[Tensor]:
    distances = torch.cdist(features, features).square()
    median = distances[distances > 0].median() if bool((distances > 0).any()) else torch.tensor(1.0)
    kernels = [features @ features.T]
    kernels += [torch.exp(-distances / (2 * width * width * median)) for width in _WIDTHS]
    return [k - k.mean(0) - k.mean(1, keepdim=True) + k.mean() for k in kernels]


def _deviations(kernel: Tensor, columns_NPC: Tensor) -> float:
    """Return how far the first of P orders of C columns lies above the others."""
    seen = (kernel @ columns_NPC.flatten(1)).view_as(columns_NPC)
    seen -= kernel.diagonal()[:, None, None] * columns_NPC  # a row says nothing of itself
    statistic_P = (columns_NPC * seen).sum((0, 2)).double()
    spread = statistic_P[1:].std()
    if not bool(spread > 0):
        return 0.0
    return float((statistic_P[0] - statistic_P[1:].mean()) / spread)
