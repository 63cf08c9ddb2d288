"""Computes features and one target per input row, to test whether targets depend on inputs."""

import base64
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

_NUM_MEANS = 24
"""Number of equal segments of a wide row of floats. The mean of each segment is a feature."""
_NUM_BANDS = 8
"""Number of frequency bands of a wide row of floats. The mean amplitude of each is a feature."""
_FLOAT16_LIMIT = 6e4
"""Maximum absolute value of an encoded feature. The largest float16 is 65,504."""
_NUM_BUCKETS = 24
"""Number of hash buckets for the integers of a row. The count of each bucket is a feature."""
_NUM_FIRST_INTEGERS = 8
"""Number of first integers of a row that are features themselves."""


@dataclass(slots=True)
class FeatureScaling:
    """Mean and standard deviation of each feature in the first batch.

    The standard deviation of a constant feature is replaced by 1.
    """

    mean: Tensor
    std: Tensor


def row_features(batch: Tensor) -> Tensor:
    """Return at most 32 features of each row of a batch, (rows, features)."""
    rows = batch.detach().reshape(batch.shape[0], -1)
    if not rows.is_floating_point():
        bucket_indices = rows.to(torch.int64) % _NUM_BUCKETS
        counts = torch.zeros(rows.shape[0], _NUM_BUCKETS, device=rows.device)
        counts.scatter_add_(1, bucket_indices, torch.ones_like(bucket_indices, dtype=torch.float32))
        return torch.cat([counts, rows[:, :_NUM_FIRST_INTEGERS].float()], 1)
    rows = torch.nan_to_num(rows.float(), 0.0, 0.0, 0.0)
    if rows.shape[1] <= _NUM_MEANS + _NUM_BANDS:
        return rows
    segment_means = F.adaptive_avg_pool1d(rows[:, None], _NUM_MEANS)[:, 0]
    band_amplitudes = F.adaptive_avg_pool1d(torch.fft.rfft(rows).abs()[:, None], _NUM_BANDS)[:, 0]
    return torch.cat([segment_means, band_amplitudes], 1)


def fit_scaling(features: Tensor) -> FeatureScaling:
    """Return the scaling that standardizes the features of a first batch."""
    mean = features.mean(0)
    std = (features - mean).square().mean(0).sqrt()
    return FeatureScaling(mean, torch.where(std > 0, std, torch.ones_like(std)))


def encode_features(features: Tensor, scaling: FeatureScaling) -> str:
    """Return standardized features as base64 text of float16 values."""
    standardized = ((features - scaling.mean) / scaling.std).clamp(-_FLOAT16_LIMIT, _FLOAT16_LIMIT)
    float16_bytes = standardized.to("cpu", torch.float16).contiguous().view(torch.uint8).flatten()
    return base64.b64encode(bytes(float16_bytes.tolist())).decode()


def decode_features(text: str, num_features: int) -> Tensor:
    """Return the features of a text from ``encode_features``, (rows, features), float32."""
    content = bytearray(base64.b64decode(text))
    if not content:
        return torch.zeros(0, num_features)
    features = torch.frombuffer(content, dtype=torch.float16).reshape(-1, num_features)
    return features.float()


def target_column(
    targets: Tensor, num_rows: int, index: int | None
) -> tuple[Tensor, bool, int] | None:
    """Return one target per row, whether the targets are classes, and the index of their column.

    Args:
        targets: Targets of a batch: (rows), (rows, 1), or floats (rows, columns).
        num_rows: Number of rows of the input.
        index: Column to use if the columns are not classes; None for the column with the largest
            variance.

    Returns:
        None if the targets have another number of rows, no such column, or another shape.
    """
    if not targets.dim() or targets.shape[0] != num_rows:
        return None
    if targets.dim() == 1 or (targets.dim() == 2 and targets.shape[1] == 1):
        column = targets.detach().reshape(-1)
        return column.double(), not column.is_floating_point(), 0
    if targets.dim() == 2 and targets.is_floating_point():
        table = targets.detach()
        sums_to_one = bool(((table.sum(1) - 1).abs() < 1e-3).all())
        if sums_to_one and bool((table >= 0).all()):  # one-hot classes, or class probabilities
            return table.argmax(1).double(), True, 0
        column_index = int(table.float().var(0, correction=0).argmax()) if index is None else index
        if column_index >= table.shape[1]:
            return None
        return table[:, column_index].double(), False, column_index
    return None


def constant_loss(kind: str, targets: Tensor) -> float | None:
    """Return the loss of the best constant prediction for targets with several columns.

    The mean squared error and the binary cross entropy are corrected for the number of rows: they
    estimate the loss over many rows, which is higher than the loss over one batch. Return
    None for targets with one column or one row, and for losses without a closed form.
    """
    if targets.dim() != 2 or targets.shape[1] < 2 or targets.shape[0] < 2:
        return None
    table = targets.detach().double()
    if kind == "mse_loss":
        return float(table.var(0).mean())  # divided by the number of rows - 1
    if kind == "l1_loss":
        return float((table - table.median(0).values).abs().mean())
    if kind.startswith("binary_cross_entropy") and bool(((table >= 0) & (table <= 1)).all()):
        means = table.mean(0)
        entropy = -(torch.xlogy(means, means) + torch.xlogy(1 - means, 1 - means))
        # The added term corrects the entropy, which few rows underestimate (Miller 1955).
        return float((entropy + (entropy > 0) / (2 * table.shape[0])).mean())
    return None
