"""Speed of the two-way bootstrap, compared with the same resampling through ``arch``."""

import time

import numpy as np
from pydantic import Field

from sluice.base.settings import Record
from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.resampling import resampled_gains
from sluice.evaluation.variance import shortest_block


class ResamplingSpeed(Record):
    """Run times of Sluice's bootstrap and of the same resampling with ``arch``."""

    num_seeds: int
    num_rows: int
    num_resamples: int
    block_length: int
    own_seconds: float = Field(description="Run time of the two-way bootstrap of Sluice [s].")
    arch_seconds: float = Field(description="Run time of the same resampling with ``arch`` [s].")
    own_gain_sd: float = Field(description="Standard deviation of Sluice's resampled gains.")
    arch_gain_sd: float = Field(
        description="Standard deviation of the gains that are resampled with ``arch``."
    )

    @property
    def speedup(self) -> float:
        """Run time with ``arch`` divided by the run time of Sluice."""
        return self.arch_seconds / self.own_seconds


def measure_resampling(
    *, num_seeds: int, num_rows: int, num_resamples: int, seed: int
) -> ResamplingSpeed:
    """Measure both implementations for a candidate with seeds and a reference without seeds.

    The standard deviations of the resampled gains show whether both implementations agree.

    Shape legend: S = seeds, N = rows, R = resamples.
    """
    from arch.bootstrap import CircularBlockBootstrap

    rng = np.random.default_rng(seed)
    loss_SN = rng.normal(size=(num_seeds, num_rows)) + rng.normal(size=(num_seeds, 1)) * 0.01
    candidate = ArmLosses(loss_SN=loss_SN, is_deterministic=False)
    reference = ArmLosses(loss_SN=np.zeros((1, num_rows)), is_deterministic=True)
    fold_N = np.zeros(num_rows, np.int64)
    block_length = shortest_block(num_rows, 1)

    start_s = time.perf_counter()
    own_gain_R = resampled_gains(
        candidate, reference, fold_N, block_length=block_length, resamples=num_resamples, rng=rng
    )
    own_seconds = time.perf_counter() - start_s

    loss_NS = np.ascontiguousarray(loss_SN.T)
    bootstrap = CircularBlockBootstrap(block_length, loss_NS, seed=rng)
    arch_gain_R = np.empty(num_resamples)
    start_s = time.perf_counter()
    for i, (samples, _) in enumerate(bootstrap.bootstrap(num_resamples)):
        sample_NS = np.asarray(samples[0])
        arch_gain_R[i] = -sample_NS.mean(axis=0)[rng.integers(num_seeds, size=num_seeds)].mean()
    arch_seconds = time.perf_counter() - start_s
    return ResamplingSpeed(
        num_seeds=num_seeds,
        num_rows=num_rows,
        num_resamples=num_resamples,
        block_length=block_length,
        own_seconds=own_seconds,
        arch_seconds=arch_seconds,
        own_gain_sd=float(own_gain_R.std()),
        arch_gain_sd=float(arch_gain_R.std()),
    )
