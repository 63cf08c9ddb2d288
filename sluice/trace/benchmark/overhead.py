"""What tracing costs: each program traced and untraced in turns, in one process (TRACE-1)."""

import hashlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from pydantic import Field
from torch import nn

from sluice.settings import Record
from sluice.trace.attach import flush_traces, traced
from sluice.trace.benchmark.programs import PROGRAMS, Program
from sluice.trace.settings import TraceSettings

_PIECE_S = 1.5
"""Of one run of a program [s]: long against the clock's noise, short against the machine's
moods."""

_SKIPPED = 130
"""Steps that are not timed: they warm up, and what a trace does more often at its start (statistics
on powers of two, fingerprints of the first batches), and writes of it, is paid once."""


class Overhead(Record):
    """One program, traced and untraced."""

    program: str
    steps: int = Field(description="Of one run.")
    rounds: int = Field(description="Pairs of runs.")
    plain_us: float = Field(description="Median time of a step, untraced [us].")
    ratio: float = Field(description="Traced over untraced, median over the pairs; 1 is no cost.")
    low: float = Field(description="A quarter of the pairs are below.")
    high: float = Field(description="A quarter of the pairs are above.")
    has_same_weights: bool = Field(description="The SHA-256 of all final weights is the same.")


def measure_overhead(
    folder: Path,
    *,
    rounds: int,
    programs: Mapping[str, Program] = PROGRAMS,
    settings: TraceSettings,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[Overhead]:
    """Yield the cost of tracing for each program, with one thread of torch.

    The runs of a pair follow each other at once, and which one is first alternates, so that both
    meet the same moods of the machine.

    Args:
        folder: For the traces, which are removed.
        rounds: Pairs of runs of each program.
        programs: Name to program.
        settings: As in use.
        clock: Processor time of this process [s]; other programs do not count.

    Cost:
        About four seconds for each pair of each program.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, program in programs.items():
            yield _measure(name, program, folder, rounds, settings, clock)
    finally:
        torch.set_num_threads(threads)


def _measure(
    name: str,
    program: Program,
    folder: Path,
    rounds: int,
    settings: TraceSettings,
    clock: Callable[[], float],
) -> Overhead:
    def run(steps: int, *, is_traced: bool) -> tuple[float, str]:
        watch: AbstractContextManager[object] = (
            traced(folder / name, settings) if is_traced else nullcontext()
        )
        ticks: list[float] = []

        def tick() -> None:
            if len(ticks) == _SKIPPED - 1:
                flush_traces()
            ticks.append(clock())

        with watch:
            networks = program(_SKIPPED + steps, tick)
        shutil.rmtree(folder / name, ignore_errors=True)
        return ticks[-1] - ticks[_SKIPPED - 1], weights_digest(networks)

    run(_SKIPPED, is_traced=True)
    warm = run(_SKIPPED, is_traced=False)[0] / _SKIPPED
    steps = 2 * max(round(_PIECE_S / warm / 2), 10)
    plain, ratios, digests = [], [], set()
    for number in range(rounds):
        seconds = {}
        for is_traced in (True, False) if number % 2 else (False, True):
            seconds[is_traced], digest = run(steps, is_traced=is_traced)
            digests.add(digest)
        plain.append(seconds[False] / steps)
        ratios.append(seconds[True] / seconds[False])
    quarters = statistics.quantiles(ratios, n=4) if rounds > 1 else [ratios[0]] * 3
    return Overhead(
        program=name,
        steps=steps,
        rounds=rounds,
        plain_us=statistics.median(plain) * 1e6,
        ratio=statistics.median(ratios),
        low=quarters[0],
        high=quarters[2],
        has_same_weights=len(digests) == 1,
    )


def weights_digest(networks: Iterable[nn.Module]) -> str:
    """Return the SHA-256 of all parameters and buffers."""
    digest = hashlib.sha256()
    for network in networks:
        for tensor in network.state_dict().values():
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
