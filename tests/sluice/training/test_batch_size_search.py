"""TRACE-17: the largest batch that fits is one that was run."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sluice.base.errors import ContractError
from sluice.models.settings import ModelSettings
from sluice.training import batch_size_search
from sluice.training.batch_size_search import BatchSizeResult, find_largest_batch
from sluice.training.settings import TrainSettings
from sluice.training.step_probe import BatchSizeAttempt, StepProbe
from tests.support.failfast_workloads import Signals
from tests.support.measured_steps import CPU, MIB, ROW_BYTES, STABLE_MALLOC, rows_of

ROOT = Path(__file__).parents[3]


class Fake:
    """Number of bytes for the model and for each row."""

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
        rows_of(num_rows),
        TrainSettings(),
        limit_rows=limit_rows,
        probe=probe,
        **settings,
    )


@pytest.mark.parametrize("fixed", [0, 700])
@pytest.mark.parametrize("answer", [1, 2, 3, 4, 37, 64, 127, 128, 129, 4999])
def test_the_answer_is_the_last_size_that_fits(answer, fixed):
    probe = Fake(fixed + 10 * answer + 9, fixed=fixed)

    found = search(probe)

    assert found.rows == answer
    assert found.peak_bytes == fixed + 10 * answer
    assert found.bound == "memory"
    assert answer in probe.ran
    assert answer + 1 in probe.ran
    assert len(probe.ran) == len(set(probe.ran)) <= 3 + 2 * math.log2(answer + 1)


def test_more_memory_never_gives_a_smaller_batch():
    sizes = [search(Fake(budget, fixed=50)).rows for budget in range(80, 3_000, 130)]

    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 15


@pytest.mark.parametrize(("limit_rows", "num_rows", "answer"), [(50, 10_000, 50), (500, 80, 80)])
def test_it_stops_at_the_limit_and_at_the_rows_there_are(limit_rows, num_rows, answer):
    probe = Fake(10**9)

    found = search(probe, limit_rows=limit_rows, num_rows=num_rows)

    assert (found.rows, found.bound) == (answer, "limit_rows")
    assert max(probe.ran) == answer


def test_a_gap_saves_attempts_and_never_returns_what_was_not_run():
    exact, coarse = Fake(40_000), Fake(40_000)

    best, near = search(exact), search(coarse, gap_share=0.1)

    assert 0.9 * best.rows <= near.rows <= best.rows
    assert near.rows in coarse.ran
    assert len(coarse.ran) < len(exact.ran) - 5


def test_no_size_is_tried_that_could_need_more_than_there_is(monkeypatch):
    """On a CPU the system kills a process that takes too much."""
    monkeypatch.setattr(batch_size_search, "available_bytes", lambda: 12_000)
    probe = Fake(11_000)

    found = search(probe, memory_bytes=11_000)

    assert found.rows == 1_100
    assert max(probe.ran) * 10 <= 12_000


def test_a_batch_that_cannot_fit_is_refused():
    with pytest.raises(ContractError, match="a batch of 1 increased memory by 6,010"):
        search(Fake(5_000, fixed=6_000))
    with pytest.raises(ContractError, match="must not exceed the free memory"):
        search(Fake(1), memory_bytes=2**60)
    with pytest.raises(ContractError, match="must be positive"):
        search(Fake(1), limit_rows=0)
    with pytest.raises(ContractError, match="gap_share"):
        search(Fake(1), gap_share=math.nan)


def in_a_fresh_process(what: str) -> dict:
    """Real steps where the allocator keeps nothing."""
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
    return in_a_fresh_process("peaks")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_real_search_finds_what_the_activations_allow():
    measured = in_a_fresh_process("searches")
    found, more = (BatchSizeResult.model_validate(measured["found"][mib]) for mib in ("32", "64"))

    assert found.bound == "memory"
    assert found.peak_bytes <= 32 * MIB
    # Three activations a row, and the weights; the gap is a tenth.
    assert 32 * MIB / ROW_BYTES / 4 <= found.rows <= 32 * MIB / ROW_BYTES / 3
    assert 1.8 <= more.rows / found.rows <= 2.3
    assert measured["unmoved"]


@pytest.mark.slow
def test_what_is_measured_is_what_was_allocated_and_it_is_given_back(measured):
    """Forward keeps one activation a row, backward holds two more (64 KiB each)."""
    first, large, again = measured["kernel"]

    assert first == pytest.approx(512 * 3 * ROW_BYTES, rel=0.1)
    assert large == pytest.approx(4 * first, rel=0.1)
    assert again == pytest.approx(first, rel=0.1)


@pytest.mark.slow
def test_where_linux_keeps_no_peak_it_is_watched(measured):
    """Short peaks may be missed, what forward keeps may not."""
    first, large, again = measured["watched"]

    assert large > first > 512 * ROW_BYTES
    assert again > 512 * ROW_BYTES
    assert large < 1.1 * measured["kernel"][1]


@pytest.mark.parametrize(
    ("error", "said"),
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
def test_an_allocator_that_refuses_does_not_fit(error, said):
    probe = failing(error)

    attempt = probe(4)

    assert not attempt.fits
    assert said in attempt.problem


def test_another_error_of_the_user_is_not_taken_for_memory():
    with pytest.raises(RuntimeError, match="the user's bug"):
        failing(RuntimeError("the user's bug"))(4)


def failing(error: Exception) -> StepProbe:
    class Failing(Signals):
        def loss(self, output, y):  # noqa: ARG002
            raise error

    return StepProbe(
        Failing(),
        ModelSettings(hidden=4),
        rows_of(64),
        TrainSettings(),
        memory_bytes=2**40,
        device=CPU,
        seed=0,
    )
