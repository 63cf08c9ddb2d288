"""What tracing costs: each program trained traced and untraced, turn by turn (TRACE-1)."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from sluice.settings import Record
from sluice.trace.attach import flush_traces, traced
from sluice.trace.benchmark.programs import PROGRAMS, Program
from sluice.trace.settings import TraceSettings

_TURN_S = 0.06
"""Of one process [s]: long beside the switch from one to the other, short beside the moods of the
machine."""

_FEWEST = 10
"""Steps of a turn; even, as a GAN makes two a batch."""

_SKIPPED = 320
"""Steps that are not timed: they warm up, and what a trace does more often at its start (statistics
on powers of two, fingerprints of the first batches, a close look at every step), and writes of it,
is paid once."""

_PROBED = 60
"""Steps that tell how long one takes."""

_DRAWS = 2000
"""Of the bootstrap."""


class Overhead(Record):
    """One program, traced and untraced."""

    program: str
    steps: int = Field(description="Of one turn.")
    pairs: int = Field(description="Of processes, one of them traced.")
    turns: int = Field(description="Of each process.")
    plain_us: float = Field(description="Mean time of a step, untraced [us].")
    ratio: float = Field(description="Time of all turns, traced over untraced; 1 is no cost.")
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

    Two new processes make the same training, one of them traced. Only one of them runs at a time,
    for a turn of some steps, so that both meet the same moods of the machine. Two processes of the
    same program differ by some percent, by where their memory lies: several pairs are measured.

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
            _measure(name, program, folder / f"{name}-{pair}", turns, settings, clock)
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
    low, high = np.quantile(watched[drawn].sum((1, 2)) / plain[drawn].sum((1, 2)), (0.025, 0.975))
    return Overhead(
        program=name,
        steps=pairs[0].steps,
        pairs=num,
        turns=turns,
        plain_us=float(plain.mean()) * 1e6,
        ratio=float(watched.sum() / plain.sum()),
        low=float(low),
        high=float(high),
        has_same_weights=all(pair.has_same_weights for pair in pairs),
    )


def _measure(
    name: str,
    program: Program,
    folder: Path,
    turns: int,
    settings: TraceSettings,
    clock: Callable[[], float],
) -> _Pair:
    context = get_context("spawn")
    # The clock of a trace's writes goes on while the other process has its turn.
    slower = settings.model_copy(update={"flush_s": 2 * settings.flush_s})
    pipes, processes = list[Any](), list[Any]()
    try:
        for watch in (None, (folder, slower)):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_train, args=(theirs, program, watch, turns, clock))
            process.start()
            theirs.close()
            pipes.append(pipe)
            processes.append(process)
        step_s = min([pipe.recv() for pipe in pipes])
        steps = max(2 * round(_TURN_S / step_s / 2), _FEWEST)
        for pipe in pipes:
            pipe.send(steps)
        seconds = _take_turns(pipes, turns) / steps
        digests = {pipe.recv() for pipe in pipes}
    except (EOFError, BrokenPipeError) as error:
        raise RuntimeError(f"the program {name} ended before its last turn") from error
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.close()
            process.join()
    plain, watched = seconds
    return _Pair(steps, plain, watched, has_same_weights=len(digests) == 1)


def _take_turns(pipes: list[Any], turns: int) -> NDArray[np.float64]:
    """Return the seconds of each turn of each process; which one is first alternates."""
    seconds = np.empty((len(pipes), turns))
    for pipe in pipes:
        pipe.recv()  # it is warm
    for turn in range(turns):
        for at in (0, 1) if turn % 2 else (1, 0):
            pipes[at].send(None)
            seconds[at, turn] = pipes[at].recv()
    return seconds


def _train(
    pipe: Connection,
    program: Program,
    watch: tuple[Path, TraceSettings] | None,
    turns: int,
    clock: Callable[[], float],
) -> None:
    """Train when it is this process's turn, in a process of its own."""
    torch.set_num_threads(1)
    ticks: list[float] = []
    program(_PROBED, lambda: ticks.append(clock()))
    pipe.send((ticks[-1] - ticks[0]) / (len(ticks) - 1))
    steps: int = pipe.recv()
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
