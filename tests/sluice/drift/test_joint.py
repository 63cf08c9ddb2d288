"""The joint test of all columns estimates a maximum mean discrepancy by random features."""

import numpy as np
import pandas as pd
import pytest

from sluice.config.drift_settings import DriftSettings
from sluice.drift.columns import normal_scores, reference_column
from sluice.drift.joint import JointReference, RandomFeatures

SETTINGS = DriftSettings()


def squared_distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return ((one[:, None] - other[None]) ** 2).sum(axis=-1)


def test_the_discrepancy_approximates_that_of_a_gaussian_kernel():
    rng = np.random.default_rng(0)
    reference = pd.DataFrame({"x": rng.normal(size=400), "y": rng.choice(["u", "v"], 400)})
    window = pd.DataFrame({"x": rng.normal(1, 1, size=300), "y": rng.choice(["u", "v"], 300)})
    columns = [reference_column(reference[name], SETTINGS, 0.01) for name in reference]
    codes = [[c.cells.encode(frame[c.name]) for c in columns] for frame in (reference, window)]
    features = RandomFeatures.draw(columns, 8192, seed=0)

    joint = JointReference.of(features, codes[0], 0.01, map)
    discrepancy = joint.distance(features.mean(codes[1], map))

    # Explicit rows: the normal score, and a one-hot encoding of the category.
    rows = [
        np.column_stack([normal_scores(columns[0])[x], np.eye(columns[1].cells.num_cells + 1)[y]])
        for x, y in codes
    ]
    width = 2 * (1 + 1 - (columns[1].share_G ** 2).sum())
    kernel = {
        (a, b): np.exp(-squared_distances(rows[a], rows[b]) / (2 * width)).mean()
        for a, b in ((0, 0), (0, 1), (1, 1))
    }
    expected = kernel[0, 0] + kernel[1, 1] - 2 * kernel[0, 1]
    assert discrepancy == pytest.approx(expected, rel=0.1)


def test_the_mean_does_not_depend_on_the_chunk_size(monkeypatch):
    values = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 2)), columns=["a", "b"])
    columns = [reference_column(values[name], SETTINGS, 0.01) for name in values]
    codes = [c.cells.encode(values[c.name]) for c in columns]
    features = RandomFeatures.draw(columns, 16, seed=0)

    whole = features.mean(codes, map)
    monkeypatch.setattr("sluice.drift.joint._CHUNK_ROWS", 7)

    assert features.mean(codes, map) == pytest.approx(whole, abs=1e-6)


def test_the_seed_determines_the_drawn_windows():
    values = pd.DataFrame(np.random.default_rng(0).normal(size=(500, 2)), columns=["a", "b"])
    columns = [reference_column(values[name], SETTINGS, 0.01) for name in values]
    codes = [c.cells.encode(values[c.name]) for c in columns]
    joint = JointReference.of(RandomFeatures.draw(columns, 16, seed=0), codes, 0.01, map)

    first, repeated, other = (
        joint.calibrate(num_rows=100, num_draws=50, seed=seed).distance_DS for seed in (0, 0, 1)
    )

    assert np.array_equal(first, repeated)
    assert not np.array_equal(first, other)
