"""What tracing costs: each program trained traced and untraced, turn by turn (TRACE-1)."""

import gc
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from sluice.settings import Record
from sluice.trace.attach import flush_traces, traced
from sluice.trace.benchmark.programs import PROGRAMS, Program
from sluice.trace.settings import TraceSettings

_TURN_S = 0.03
"""Of one process [s]: long beside the switch from one to the other, short beside the moods of the
machine."""

_FEWEST = 4
"""Steps of a turn; even, as a GAN makes two a batch."""

_SKIPPED = 320
"""Steps that are not timed: they warm up, and what a trace does more often at its start (statistics
on powers of two, fingerprints of the first batches, a close look at every step), and writes of it,
is paid once. So is the collection of all garbage that its import may bring forward: both processes
make one before the first turn, and what is left behind at each step still counts."""

_PROBED = 60
"""Steps that tell how long one takes."""

_DRAWS = 2000
"""Of the bootstrap."""


_Watch = tuple[Path, TraceSettings] | None
"""Folder and settings of a trace; None for none."""


class Overhead(Record):
    """One program, traced and untraced."""

    program: str
    steps: int = Field(description="Of one turn.")
    pairs: int = Field(description="Of processes, one of them traced.")
    turns: int = Field(description="Of each process.")
    plain_us: float = Field(description="Mean time of a step, untraced [us].")
    ratio: float = Field(
        description="Time of all turns of a pair, traced over untraced, the median over the pairs; "
        "1 is no cost."
    )
    low: float = Field(
        description="Lower end of its 95 % interval, bootstrap over the pairs and their turns."
    )
    high: float = Field(description="Upper end.")
    has_same_weights: bool = Field(description="The SHA-256 of all final weights is the same.")


def measure_overhead(
    folder: Path,
    *,
    pairs: int,
    turns: int,
    programs: Mapping[str, Program] = PROGRAMS,
    settings: TraceSettings,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[Overhead]:
    """Yield the cost of tracing for each program, with one thread of torch.

    Two processes make the same training, one of them traced. Only one of them runs at a time, for
    a turn of some steps, so that both meet the same moods of the machine. By where its memory lies
    a process is some percent faster or slower: both are forked from one, the traced one first or
    second by turns, and of several pairs the median counts.

    Args:
        folder: For the traces.
        pairs: Of processes, one pair after another.
        turns: Of each process.
        programs: Name to program; functions that another process can import.
        settings: As in use.
        clock: Processor time of a process [s]; other programs do not count.

    Raises:
        RuntimeError: A program ended before its last turn.

    Cost:
        About 0.12 seconds a turn of each pair, and 5 seconds of each pair to begin with.
    """
    for name, program in programs.items():
        told = [
            _measure(name, program, (pair % 2, folder / f"{name}-{pair}"), turns, settings, clock)
            for pair in range(pairs)
        ]
        yield _overhead(name, told)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two processes."""

    steps: int
    plain: NDArray[np.float64]
    """Seconds of a step, by turn."""
    watched: NDArray[np.float64]
    has_same_weights: bool


def _overhead(name: str, pairs: Sequence[_Pair]) -> Overhead:
    plain, watched = (np.stack([getattr(p, kind) for p in pairs]) for kind in ("plain", "watched"))
    generator, (num, turns) = np.random.default_rng(0), plain.shape
    drawn = (
        generator.integers(0, num, (_DRAWS, num, 1)),
        generator.integers(0, turns, (_DRAWS, num, turns)),
    )
    ratio, ratios = _ratio(plain, watched), _ratio(plain[drawn], watched[drawn])
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Overhead(
        program=name,
        steps=pairs[0].steps,
        pairs=num,
        turns=turns,
        plain_us=float(plain.mean()) * 1e6,
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        has_same_weights=all(pair.has_same_weights for pair in pairs),
    )


def _ratio(plain: NDArray[np.float64], watched: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median over the pairs: where one of two has bad luck, nothing else is told."""
    found: NDArray[np.float64] = np.median(watched.sum(-1) / plain.sum(-1), axis=-1)
    return found


def _measure(
    name: str,
    program: Program,
    watched: tuple[int, Path],
    turns: int,
    settings: TraceSettings,
    clock: Callable[[], float],
) -> _Pair:
    at, folder = watched
    # The clock of a trace's writes goes on while the other process has its turn.
    slower = settings.model_copy(update={"flush_s": 2 * settings.flush_s})
    context = get_context("spawn")
    ours, theirs = zip(*(context.Pipe() for _ in range(2)), strict=True)
    watches: list[_Watch] = [None, None]
    watches[at] = folder, slower
    arguments = theirs, program, watches, turns, clock
    parent = context.Process(target=_fork, args=arguments)
    parent.start()
    try:
        for pipe in theirs:
            pipe.close()
        steps, _ = (pipe.recv() for pipe in ours)
        seconds = _take_turns(ours, turns) / steps
        digests = {pipe.recv() for pipe in ours}
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        raise RuntimeError(f"the program {name} ended before its last turn") from error
    finally:
        for pipe in ours:
            pipe.close()
        parent.join()
    return _Pair(steps, seconds[1 - at], seconds[at], has_same_weights=len(digests) == 1)


def _take_turns(pipes: Sequence[Connection], turns: int) -> NDArray[np.float64]:
    """Return the seconds of each turn of each process; which one is first alternates."""
    seconds = np.empty((len(pipes), turns))
    for pipe in pipes:
        pipe.recv()  # it is warm
    for turn in range(turns):
        for at in (0, 1) if turn % 2 else (1, 0):
            pipes[at].send(None)
            seconds[at, turn] = pipes[at].recv()
    return seconds


def _fork(
    pipes: Sequence[Connection],
    program: Program,
    watches: Sequence[_Watch],
    turns: int,
    clock: Callable[[], float],
) -> None:
    """Warm up, in a process of its own, then become one process for each pipe."""
    torch.set_num_threads(1)
    ticks: list[float] = []
    program(_PROBED, lambda: ticks.append(clock()))
    step_s = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    steps = max(2 * round(_TURN_S / step_s / 2), _FEWEST)
    context = get_context("fork")
    processes = []
    for at, watch in enumerate(watches):
        arguments = pipes, at, program, watch, turns, steps, clock
        processes.append(context.Process(target=_train, args=arguments))
        processes[-1].start()
    for pipe in pipes:
        pipe.close()  # one that dies is heard of
    for process in processes:
        process.join()


def _train(
    pipes: Sequence[Connection],
    at: int,
    program: Program,
    watch: _Watch,
    turns: int,
    steps: int,
    clock: Callable[[], float],
) -> None:
    """Train when it is this process's turn."""
    for other in (*pipes[:at], *pipes[at + 1 :]):
        other.close()
    pipe = pipes[at]
    pipe.send(steps)
    made, began = 0, 0.0

    def tick() -> None:
        nonlocal made, began
        made += 1
        num, rest = divmod(made - _SKIPPED, steps)
        if rest or num < 0:
            return
        if num:
            pipe.send(clock() - began)
        else:
            flush_traces()
            gc.collect()
            pipe.send(None)
        if num < turns:
            pipe.recv()
            began = clock()

    context: AbstractContextManager[object] = nullcontext() if watch is None else traced(*watch)
    with context:
        networks = program(_SKIPPED + turns * steps, tick)
    pipe.send(weights_digest(networks))


def weights_digest(networks: Iterable[nn.Module]) -> str:
    """Return the SHA-256 of all parameters and buffers."""
    digest = hashlib.sha256()
    for network in networks:
        for tensor in network.state_dict().values():
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
