"""A bounded sketch of rows beside their targets: do targets depend on inputs at all?"""

import base64
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_PLAIN, _BANDS = 24, 8
"""Features of a long row: means of its parts, and parts of its spectrum."""
_LIMIT = 6e4
"""Of 16-bit floats."""
_BUCKETS = 24


@dataclass(slots=True)
class Scaling:
    """Of the features, by the first batch."""

    mean: Tensor
    std: Tensor


def features_of(batch: Tensor) -> Tensor:
    """Return (rows, features) that tell rows apart, whatever the shape of the batch."""
    rows = batch.detach().reshape(batch.shape[0], -1)
    if not rows.is_floating_point():
        buckets = rows.to(torch.int64) % _BUCKETS
        counts = torch.zeros(rows.shape[0], _BUCKETS, device=rows.device)
        counts.scatter_add_(1, buckets, torch.ones_like(buckets, dtype=torch.float32))
        return torch.cat([counts, rows[:, :_BANDS].float()], 1)
    rows = torch.nan_to_num(rows.float(), 0.0, 0.0, 0.0)
    if rows.shape[1] <= _PLAIN + _BANDS:
        return rows
    parts = F.adaptive_avg_pool1d(rows[:, None], _PLAIN)[:, 0]
    bands = F.adaptive_avg_pool1d(torch.fft.rfft(rows).abs()[:, None], _BANDS)[:, 0]
    return torch.cat([parts, bands], 1)


def scaling_of(features: Tensor) -> Scaling:
    """Return what makes features of a first batch have mean 0 and deviation 1."""
    mean = features.mean(0)
    std = (features - mean).square().mean(0).sqrt()
    return Scaling(mean, torch.where(std > 0, std, torch.ones_like(std)))


def packed(features: Tensor, scaling: Scaling) -> str:
    """Return features, standardised, as text."""
    told = ((features - scaling.mean) / scaling.std).clamp(-_LIMIT, _LIMIT)
    flat = told.to("cpu", torch.float16).contiguous().view(torch.uint8).flatten()
    return base64.b64encode(bytes(flat.tolist())).decode()


def unpacked(text: str, num_features: int) -> Tensor:
    """Return what ``packed`` made: (rows, features), 32-bit."""
    content = bytearray(base64.b64decode(text))
    if not content:
        return torch.zeros(0, num_features)
    found = torch.frombuffer(content, dtype=torch.float16).reshape(-1, num_features)
    return found.float()


def target_column(targets: Tensor, rows: int) -> tuple[Tensor, bool] | None:
    """Return one number for each row, and whether it is a class; None when there is none."""
    if not targets.dim() or targets.shape[0] != rows:
        return None
    if targets.dim() == 1 or (targets.dim() == 2 and targets.shape[1] == 1):
        column = targets.detach().reshape(-1)
        return column.double(), not column.is_floating_point()
    if targets.dim() == 2 and targets.is_floating_point():
        table = targets.detach()
        is_one_hot = bool(((table.sum(1) - 1).abs() < 1e-3).all()) and bool((table >= 0).all())
        return (table.argmax(1).double(), True) if is_one_hot else (table[:, 0].double(), False)
    return None
