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


def target_column(targets: Tensor, rows: int, place: int | None) -> tuple[Tensor, bool, int] | None:
    """Return one number for each row, whether it is a class, and its column; None for no such.

    Args:
        targets: Of some rows.
        rows: Of the input.
        place: Column to take of several; None for the one that varies most.
    """
    if not targets.dim() or targets.shape[0] != rows:
        return None
    if targets.dim() == 1 or (targets.dim() == 2 and targets.shape[1] == 1):
        column = targets.detach().reshape(-1)
        return column.double(), not column.is_floating_point(), 0
    if targets.dim() == 2 and targets.is_floating_point():
        table = targets.detach()
        is_one_hot = bool(((table.sum(1) - 1).abs() < 1e-3).all()) and bool((table >= 0).all())
        if is_one_hot:
            return table.argmax(1).double(), True, 0
        chosen = int(table.float().var(0, correction=0).argmax()) if place is None else place
        return (table[:, chosen].double(), False, chosen) if chosen < table.shape[1] else None
    return None


def prior_of(kind: str, targets: Tensor) -> float | None:
    """Return the loss of the best constant answer to some rows of several numbers each.

    None for a single number, and when it has no plain form.
    """
    if targets.dim() != 2 or targets.shape[1] < 2 or targets.shape[0] < 2:
        return None
    table = targets.detach().double()
    if kind == "mse_loss":
        return float(table.var(0).mean())
    if kind == "l1_loss":
        return float((table - table.median(0).values).abs().mean())
    if kind.startswith("binary_cross_entropy") and bool(((table >= 0) & (table <= 1)).all()):
        share = table.mean(0)
        entropy = -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share))
        # That of few rows is too small (Miller 1955).
        return float((entropy + (entropy > 0) / (2 * table.shape[0])).mean())
    return None
