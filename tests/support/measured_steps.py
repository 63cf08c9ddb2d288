"""Measures the peak memory of training steps: ``python -m ... searches|peaks|settings``.

The results are printed as JSON. Whether glibc returns freed memory to the system depends on the
earlier allocations of the process. With ``STABLE_MALLOC`` in the environment, every large block is
mapped and unmapped separately.
"""

import json
import sys

import numpy as np
import torch
from torch import nn

from sluice.base.seeding import rng_state
from sluice.models.settings import ModelSettings
from sluice.training import step_probe
from sluice.training.batch_size_search import BatchSizeResult, find_largest_batch
from sluice.training.settings import TrainSettings
from sluice.training.step_probe import StepProbe
from sluice.workloads.examples import Examples
from tests.support.failfast_workloads import Signals

STABLE_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}
ROW_BYTES = 65_536
CPU = torch.device("cpu")
MIB = 2**20


class Wide(nn.Module):
    """Keeps activations of 64 KiB per row for the backward pass."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, 16_384)
        self.second = nn.Linear(16_384, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x[:, -1])))


class WideSignals(Signals):
    def build_model(self, num_features, num_outputs, settings):
        return Wide(num_features)

    def parameter_groups(self, network):
        return [
            {"params": list(network.first.parameters())},
            {"params": network.second.parameters()},
        ]


class Deep(nn.Module):
    """Keeps activations of 64 KiB per row for each of four blocks."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.first = nn.Linear(num_features, 16)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.blocks(self.first(x[:, -1])))


class Block(nn.Module):
    recompute = True

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 16_384), nn.Linear(16_384, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class DeepSignals(Signals):
    def build_model(self, num_features, num_outputs, settings):
        return Deep(num_features)


def random_examples(num_rows: int, num_features: int = 3) -> Examples:
    rng = torch.Generator().manual_seed(0)
    return Examples(
        x=torch.randn(num_rows, 2, num_features, generator=rng),
        y=torch.randn(num_rows, 1, generator=rng),
        rows=np.arange(num_rows),
    )


def search(memory_bytes: int) -> BatchSizeResult:
    return find_largest_batch(
        WideSignals(),
        ModelSettings(),
        random_examples(8_192),
        TrainSettings(),
        limit_rows=4_096,
        memory_bytes=memory_bytes,
        gap_share=0.1,
        device=CPU,
        seed=0,
    )


def peaks(*sizes: int) -> list[int]:
    probe = StepProbe(
        WideSignals(),
        ModelSettings(),
        random_examples(2_048),
        TrainSettings(),
        memory_bytes=2**40,
        device=CPU,
        seed=0,
    )
    return [probe(rows).peak_bytes for rows in sizes]


def searches() -> dict[str, object]:
    """Return the results of two searches, and whether the random states are unchanged."""
    states_before = rng_state()
    results = {str(mib): search(mib * MIB).model_dump(mode="json") for mib in (32, 64)}
    is_rng_unchanged = all(
        torch.equal(states_before[name], state)
        for name, state in rng_state().items()
        if not name.endswith("gauss")
    )
    return {"results": results, "is_rng_unchanged": is_rng_unchanged}


def both_peaks() -> dict[str, object]:
    """Return peaks that the kernel recorded, and peaks that the probe sampled."""
    kernel_peaks = peaks(512, 2_048, 512)
    step_probe._restart_kernel_peak = lambda: False  # as on systems whose kernel records no peak
    sampled_peaks = peaks(512, 2_048, 512)
    return {"kernel": kernel_peaks, "sampled": sampled_peaks}


def peaks_by_setting() -> dict[str, int]:
    """Return the peak memory of a step of 256 rows with different settings [bytes]."""
    changes_by_name = {
        "default": {},
        "micro_batches": {"micro_batch_rows": 64},
        "recomputed": {"recompute_activations": True},
        "bf16": {"precision": "bf16"},
    }
    peak_bytes = {}
    for name, change in changes_by_name.items():
        probe = StepProbe(
            DeepSignals(),
            ModelSettings(),
            random_examples(256),
            TrainSettings(**change),
            memory_bytes=2**40,
            device=CPU,
            seed=0,
        )
        peak_bytes[name] = probe(256).peak_bytes
    return peak_bytes


if __name__ == "__main__":
    modes = {"searches": searches, "peaks": both_peaks, "settings": peaks_by_setting}
    print(json.dumps(modes[sys.argv[1]]()))
