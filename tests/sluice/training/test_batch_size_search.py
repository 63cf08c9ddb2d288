"""TRACE-17: the batch size search returns the largest batch that was run and fits in memory."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.models.settings import ModelSettings
from sluice.training import batch_size_search
from sluice.training.batch_size_search import BatchSizeResult, find_largest_batch
from sluice.training.settings import TrainSettings
from sluice.training.step_probe import BatchSizeAttempt, StepProbe
from tests.support.failfast_workloads import Signals
from tests.support.measured_steps import CPU, MIB, ROW_BYTES, STABLE_MALLOC, random_examples

ROOT = Path(__file__).parents[3]


class FakeProbe:
    """Step probe that needs ``fixed`` bytes for the model and ``per_row`` bytes for each row."""

    def __init__(self, memory_bytes: int, *, fixed: int = 0, per_row: int = 10) -> None:
        self.memory_bytes, self.fixed, self.per_row = memory_bytes, fixed, per_row
        self.ran: list[int] = []

    def __call__(self, rows: int) -> BatchSizeAttempt:
        self.ran.append(rows)
        peak = self.fixed + self.per_row * rows
        return BatchSizeAttempt(
            rows=rows, fits=peak <= self.memory_bytes, peak_bytes=peak, seconds=0.0
        )


def search(probe, *, limit_rows: int = 10_000, num_rows: int = 10_000, **settings):
    settings = {"memory_bytes": 5_000, "gap_share": 0.0, "device": CPU, "seed": 0} | settings
    return find_largest_batch(
        Signals(),
        ModelSettings(hidden=4),
        random_examples(num_rows),
        TrainSettings(),
        limit_rows=limit_rows,
        probe=probe,
        **settings,
    )


@pytest.mark.parametrize("fixed", [0, 700])
@pytest.mark.parametrize("largest", [1, 2, 3, 4, 37, 64, 127, 128, 129, 4999])
def test_search_returns_the_largest_size_that_fits(largest, fixed):
    probe = FakeProbe(fixed + 10 * largest + 9, fixed=fixed)

    found = search(probe)

    assert found.rows == largest
    assert found.peak_bytes == fixed + 10 * largest
    assert found.bound == "memory"
    assert largest in probe.ran
    assert largest + 1 in probe.ran
    assert len(probe.ran) == len(set(probe.ran)) <= 3 + 2 * math.log2(largest + 1)


def test_more_memory_never_gives_a_smaller_batch():
    sizes = [search(FakeProbe(budget, fixed=50)).rows for budget in range(80, 3_000, 130)]

    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 15


@pytest.mark.parametrize(("limit_rows", "num_rows", "largest"), [(50, 10_000, 50), (500, 80, 80)])
def test_search_stops_at_limit_rows_and_at_the_number_of_rows(limit_rows, num_rows, largest):
    probe = FakeProbe(10**9)

    found = search(probe, limit_rows=limit_rows, num_rows=num_rows)

    assert (found.rows, found.bound) == (largest, "limit_rows")
    assert max(probe.ran) == largest


def test_gap_share_saves_attempts_and_returns_only_a_size_that_was_run():
    exact, coarse = FakeProbe(40_000), FakeProbe(40_000)

    best, near = search(exact), search(coarse, gap_share=0.1)

    assert 0.9 * best.rows <= near.rows <= best.rows
    assert near.rows in coarse.ran
    assert len(coarse.ran) < len(exact.ran) - 5


def test_search_tries_no_size_above_the_available_memory(monkeypatch):
    """On a CPU the operating system kills a process that allocates too much."""
    monkeypatch.setattr(batch_size_search, "available_bytes", lambda: 12_000)
    probe = FakeProbe(11_000)

    found = search(probe, memory_bytes=11_000)

    assert found.rows == 1_100
    assert max(probe.ran) * 10 <= 12_000


def test_impossible_searches_are_rejected():
    with pytest.raises(ContractError, match="a batch of 1 row increased memory by 6,010"):
        search(FakeProbe(5_000, fixed=6_000))
    with pytest.raises(ContractError, match="must not exceed the free memory"):
        search(FakeProbe(1), memory_bytes=2**60)
    with pytest.raises(ContractError, match="must be positive"):
        search(FakeProbe(1), limit_rows=0)
    with pytest.raises(ContractError, match="gap_share"):
        search(FakeProbe(1), gap_share=math.nan)


def measure_in_new_process(what: str) -> dict:
    """Measure real steps in a process whose allocator caches no memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.measured_steps", what],
        cwd=ROOT,
        env=os.environ | STABLE_MALLOC,
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def measured() -> dict:
    return measure_in_new_process("peaks")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_real_search_result_matches_the_activation_memory():
    measured = measure_in_new_process("searches")
    found, more = (BatchSizeResult.model_validate(measured["results"][mib]) for mib in ("32", "64"))

    assert found.bound == "memory"
    assert found.peak_bytes <= 32 * MIB
    # Memory holds three activations per row and the weights; the gap is a tenth.
    assert 32 * MIB / ROW_BYTES / 4 <= found.rows <= 32 * MIB / ROW_BYTES / 3
    assert 1.8 <= more.rows / found.rows <= 2.3
    assert measured["is_rng_unchanged"]


@pytest.mark.slow
def test_measured_peak_equals_the_allocation_and_resets_between_attempts(measured):
    """The forward pass keeps one activation per row, backward two more (64 KiB each)."""
    first, large, again = measured["kernel"]

    assert first == pytest.approx(512 * 3 * ROW_BYTES, rel=0.1)
    assert large == pytest.approx(4 * first, rel=0.1)
    assert again == pytest.approx(first, rel=0.1)


@pytest.mark.slow
def test_peak_is_sampled_if_the_kernel_reports_none(measured):
    """Sampling may miss short peaks, but not the activations that the forward pass keeps."""
    first, large, again = measured["sampled"]

    assert large > first > 512 * ROW_BYTES
    assert again > 512 * ROW_BYTES
    assert large < 1.1 * measured["kernel"][1]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_settings_that_save_memory_lower_the_peak():
    peaks = measure_in_new_process("settings")

    assert peaks["micro_batches"] < 0.6 * peaks["default"]
    assert peaks["recomputed"] < 0.75 * peaks["default"]
    assert peaks["bf16"] < 0.75 * peaks["default"]


class Recorder(nn.Module):
    """Records the number of rows of each forward pass, and whether it runs in autocast."""

    recompute = True

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, 1)
        self.calls: list[tuple[int, bool]] = []

    def forward(self, x):
        self.calls.append((len(x), torch.is_autocast_enabled("cpu")))
        return self.linear(x[:, -1])

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize(
    ("settings", "calls_of_a_step"),
    [
        ({}, [(6, False)]),
        ({"precision": "bf16"}, [(6, True)]),
        ({"micro_batch_rows": 4}, [(4, False), (2, False)]),
        ({"recompute_activations": True}, [(6, False), (6, False)]),  # again in the backward pass
    ],
)
def test_steps_use_precision_micro_batches_and_recomputation_of_the_training(
    settings, calls_of_a_step
):
    recorders = []

    class Recorded(Signals):
        def build_model(self, num_features, num_outputs, settings):  # noqa: ARG002
            recorders.append(Recorder(num_features))
            return recorders[0]

    probe = StepProbe(
        Recorded(),
        ModelSettings(),
        random_examples(64),
        TrainSettings(**settings),
        memory_bytes=2**40,
        device=CPU,
        seed=0,
    )
    assert probe(6).fits

    assert recorders[0].calls == 4 * calls_of_a_step  # two steps to warm up, and two measured ones


@pytest.mark.parametrize(
    ("error", "message"),
    [
        *(
            pytest.param(*more, marks=pytest.mark.exhaustive)
            for more in (
                (MemoryError("no memory"), "no memory"),
                (torch.OutOfMemoryError("CUDA out of memory. Tried"), "CUDA out of memory"),
            )
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "can't allocate"),
    ],
)
def test_out_of_memory_error_is_an_attempt_that_does_not_fit(error, message):
    probe = make_failing_probe(error)

    attempt = probe(4)

    assert not attempt.fits
    assert message in attempt.problem


def test_other_errors_of_user_code_are_raised():
    with pytest.raises(RuntimeError, match="the user's bug"):
        make_failing_probe(RuntimeError("the user's bug"))(4)


def make_failing_probe(error: Exception) -> StepProbe:
    class Failing(Signals):
        def loss(self, output, y):  # noqa: ARG002
            raise error

    return StepProbe(
        Failing(),
        ModelSettings(hidden=4),
        random_examples(64),
        TrainSettings(),
        memory_bytes=2**40,
        device=CPU,
        seed=0,
    )
