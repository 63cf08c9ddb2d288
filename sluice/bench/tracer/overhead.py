"""What tracing costs: programs that are traced in every other turn of some epochs (TRACE-1).

Two processes of one program differ by some percent without any tracing, by where their memory lies.
So one process makes both: for a turn every seam is as torch made it, for the next one the trace
goes on. Whether weights stay the same is told by processes that are traced from end to end.
"""

import gc
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
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

from sluice.base.settings import Record
from sluice.bench.tracer.programs import EPOCH_STEPS, PROGRAMS, Program
from sluice.trace.attach import flush_traces, paused_traces, traced
from sluice.trace.settings import TraceSettings

_TURN_S = 0.3
"""Of one turn at least [s]: long beside the steps in which the interpreter learns again what calls
lead where, short beside the moods of the machine."""

_SKIPPED = 20 * EPOCH_STEPS
"""Steps that are not timed: they warm up, and what a trace does more often at its start (statistics
on powers of two, fingerprints of the first batches, a close look at every step), and writes of it,
is paid once. So is the collection of all garbage that its import may bring forward: one is made
before the first turn, and what is left behind at each step still counts."""

_DRAWS = 2000
"""Of the bootstrap."""


class Overhead(Record):
    """One program, traced and untraced."""

    program: str
    steps: int = Field(description="Of one turn.")
    runs: int = Field(description="Processes, one after another.")
    turns: int = Field(description="Traced ones of each process, and as many untraced ones.")
    plain_us: float = Field(description="Mean time of a step, untraced [us].")
    ratio: float = Field(
        description="Time of all turns of a process, traced over untraced, the median over the "
        "processes; 1 is no cost."
    )
    low: float = Field(
        description="Lower end of its 95 % interval, bootstrap over processes and their turns."
    )
    high: float = Field(description="Upper end.")
    has_same_weights: bool = Field(
        description="The SHA-256 of all final weights is the same, traced and untraced."
    )


_Watch = tuple[Path, TraceSettings] | None
"""Folder and settings of a trace; None for none."""


@dataclass(frozen=True, slots=True)
class _Turns:
    """One process."""

    steps: int
    plain: NDArray[np.float64]
    """Seconds of a step, by turn."""
    watched: NDArray[np.float64]


def measure_overhead(
    folder: Path,
    *,
    runs: int,
    turns: int,
    programs: Mapping[str, Program] = PROGRAMS,
    settings: TraceSettings,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[Overhead]:
    """Yield the cost of tracing for each program, with one thread of torch.

    Args:
        folder: For the traces.
        runs: Processes, one after another; of several the median counts.
        turns: Traced ones of each process, and as many untraced ones.
        programs: Name to program; functions that another process can import, with epochs of
            ``EPOCH_STEPS`` steps, so that each turn sees whole ones.
        settings: As in use.
        clock: Processor time of a process [s]; other programs do not count.

    Raises:
        RuntimeError: A program ended before its last turn.

    Cost:
        Of each program 2 x turns x EPOCH_STEPS steps a run, or more, and 5 seconds to begin.
    """
    # The clock of a trace's writes goes on in turns that are not traced.
    slower = settings.model_copy(update={"flush_s": 2 * settings.flush_s})
    for name, program in programs.items():
        watches: list[_Watch] = [None, (folder / f"{name}-whole", settings)]
        digests = {_in_process(name, _digest, program, watch) for watch in watches}
        told: list[_Turns] = [
            _in_process(name, _turns, program, (folder / f"{name}-{run}", slower), turns, clock)
            for run in range(runs)
        ]
        yield _overhead(name, told, has_same_weights=len(digests) == 1)


def _overhead(name: str, told: Sequence[_Turns], *, has_same_weights: bool) -> Overhead:
    plain, watched = (np.stack([getattr(p, kind) for p in told]) for kind in ("plain", "watched"))
    generator, (num, turns) = np.random.default_rng(0), plain.shape
    drawn = (
        generator.integers(0, num, (_DRAWS, num, 1)),
        generator.integers(0, turns, (_DRAWS, num, turns)),
    )
    ratio, ratios = _ratio(plain, watched), _ratio(plain[drawn], watched[drawn])
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Overhead(
        program=name,
        steps=told[0].steps,
        runs=num,
        turns=turns,
        plain_us=float(plain.mean()) * 1e6,
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        has_same_weights=has_same_weights,
    )


def _ratio(plain: NDArray[np.float64], watched: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median over the processes: where one of them has bad luck, nothing is told."""
    found: NDArray[np.float64] = np.median(watched.sum(-1) / plain.sum(-1), axis=-1)
    return found


def _in_process(name: str, work: Callable[..., Any], *args: Any) -> Any:
    """Return what some work returns in a process of its own, with one thread of torch."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs, work, args))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError as error:
        raise RuntimeError(f"the program {name} ended before its last turn") from error
    finally:
        ours.close()
        process.join()


def _send(pipe: Connection, work: Callable[..., Any], args: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    pipe.send(work(*args))


def _digest(program: Program, watch: _Watch) -> str:
    with nullcontext() if watch is None else traced(*watch):
        return weights_digest(program(2 * _SKIPPED, lambda: None))


def _turns(
    program: Program, watch: tuple[Path, TraceSettings], turns: int, clock: Callable[[], float]
) -> _Turns:
    """Train, traced and untraced in turns; which comes first of two alternates."""
    ticks: list[float] = []
    program(2 * EPOCH_STEPS, lambda: ticks.append(clock()))
    step_s = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    steps = max(round(_TURN_S / step_s / EPOCH_STEPS), 1) * EPOCH_STEPS
    are_watched = [turn % 4 in (0, 3) for turn in range(2 * turns)]
    seconds: dict[bool, list[float]] = {True: [], False: []}
    pause, made, began = ExitStack(), 0, 0.0

    def tick() -> None:
        nonlocal made, began
        made += 1
        turn, rest = divmod(made - _SKIPPED, steps)
        if rest or turn < 0:
            return
        if turn:
            seconds[are_watched[turn - 1]].append((clock() - began) / steps)
        else:
            flush_traces()
            gc.collect()
        pause.close()
        if turn < len(are_watched) and not are_watched[turn]:
            pause.enter_context(paused_traces())
        began = clock()

    with traced(*watch):
        program(_SKIPPED + len(are_watched) * steps, tick)
    return _Turns(steps, *(np.array(seconds[kind]) for kind in (False, True)))


def weights_digest(networks: Iterable[nn.Module]) -> str:
    """Return the SHA-256 of all parameters and buffers."""
    digest = hashlib.sha256()
    for network in networks:
        for tensor in network.state_dict().values():
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
