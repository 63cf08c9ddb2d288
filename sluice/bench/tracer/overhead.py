"""Measures the overhead of tracing, with programs that alternate between traced and untraced turns.

A turn is a fixed number of steps, in whole epochs. Each process runs traced and untraced turns: the
tracer's hooks are installed for a traced turn and removed for an untraced turn. Separate processes
for traced and untraced runs would be too inexact: because of memory layout, the times of two
processes of one program differ by some percent even without tracing.

Two more processes show whether tracing changes the weights. One of them is traced from start to
end, and the other is not traced.
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
from sluice.bench.tracer.programs import EPOCH_STEPS, PROGRAMS, TimedProgram
from sluice.trace.attach import flush_traces, paused_traces, traced
from sluice.trace.settings import TraceSettings

_TURN_S = 0.3
"""Approximate duration of a turn [s]. It is long compared with the time in which the interpreter
specialises its bytecode again, after each switch between traced and untraced turns. It is short
compared with the time in which the load of the machine changes."""

_UNTIMED_STEPS = 20 * EPOCH_STEPS
"""Number of steps at the start that are not timed. They contain the warm-up, and the work that the
tracer does more often at the start of a trace: statistics of steps, fingerprints of batches, and
full recording of every step."""

_NUM_RESAMPLES = 2000
"""Number of bootstrap resamples."""


class Overhead(Record):
    """Measurements of one program, traced and untraced."""

    program: str
    steps: int = Field(description="Number of steps of one turn.")
    runs: int = Field(description="Number of processes, which run one after another.")
    turns: int = Field(
        description="Number of traced turns per process, and also of untraced turns."
    )
    plain_us: float = Field(description="Mean time of an untraced step [us].")
    ratio: float = Field(
        description="Ratio of traced to untraced time, median over the processes. 1: no overhead."
    )
    low: float = Field(
        description="Lower end of the 95 % interval of the ratio, from a bootstrap over processes "
        "and turns."
    )
    high: float = Field(description="Upper end of the 95 % interval of the ratio.")
    has_same_weights: bool = Field(
        description="Whether a traced and an untraced process end with the same weights."
    )


_TraceArguments = tuple[Path, TraceSettings] | None
"""Folder and settings of a trace; None runs the program untraced."""


@dataclass(frozen=True, slots=True)
class _ProcessTimes:
    """Times of one process."""

    steps_per_turn: int
    """Number of steps of one turn."""
    untraced_s: NDArray[np.float64]
    """Mean time of a step in each untraced turn [s]."""
    traced_s: NDArray[np.float64]
    """Mean time of a step in each traced turn [s]."""


def measure_overhead(
    folder: Path,
    *,
    num_processes: int,
    num_turns: int,
    programs: Mapping[str, TimedProgram] = PROGRAMS,
    settings: TraceSettings,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[Overhead]:
    """Yield the overhead of tracing for each program, with one thread.

    Args:
        folder: Folder of the traces.
        num_processes: Number of processes, which run one after another. The median of their ratios
            is reported.
        num_turns: Number of traced turns per process, and also of untraced turns.
        programs: Programs by name. They must be importable functions, because they run in child
            processes. Their epochs must have ``EPOCH_STEPS`` steps; turns are whole epochs then.
        settings: Settings of the tracer.
        clock: Returns the CPU time of the process [s].

    Raises:
        RuntimeError: A process ended without a result.

    Cost:
        At least 2 x num_turns x EPOCH_STEPS steps, and 5 seconds of start-up, per process.
    """
    # The flush interval is doubled, because half of the turns are untraced. The number of writes
    # per traced second is then the same as in normal use.
    doubled_flush = settings.model_copy(update={"flush_s": 2 * settings.flush_s})
    for name, program in programs.items():
        untraced_and_traced: list[_TraceArguments] = [None, (folder / f"{name}-whole", settings)]
        digests = {
            _run_in_process(name, _train_and_digest, program, trace_arguments)
            for trace_arguments in untraced_and_traced
        }
        times: list[_ProcessTimes] = [
            _run_in_process(
                name,
                _time_turns,
                program,
                (folder / f"{name}-{run}", doubled_flush),
                num_turns,
                clock,
            )
            for run in range(num_processes)
        ]
        yield _build_overhead(name, times, has_same_weights=len(digests) == 1)


def _build_overhead(
    name: str, times: Sequence[_ProcessTimes], *, has_same_weights: bool
) -> Overhead:
    untraced_s = np.stack([process.untraced_s for process in times])
    traced_s = np.stack([process.traced_s for process in times])
    num_processes, num_turns = untraced_s.shape
    generator = np.random.default_rng(0)
    # Indices of the form (process, turn). Each resample draws processes, then turns of each.
    resamples = (
        generator.integers(0, num_processes, (_NUM_RESAMPLES, num_processes, 1)),
        generator.integers(0, num_turns, (_NUM_RESAMPLES, num_processes, num_turns)),
    )
    ratio = _median_ratio(untraced_s, traced_s)
    resampled_ratios = _median_ratio(untraced_s[resamples], traced_s[resamples])
    low, high = np.quantile(resampled_ratios, (0.025, 0.975))
    return Overhead(
        program=name,
        steps=times[0].steps_per_turn,
        runs=num_processes,
        turns=num_turns,
        plain_us=float(untraced_s.mean()) * 1e6,
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        has_same_weights=has_same_weights,
    )


def _median_ratio(
    untraced_s: NDArray[np.float64], traced_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the ratio of traced to untraced time, as the median over the processes.

    The median is robust to a single slow process. The shape of the inputs is (..., processes,
    turns).
    """
    ratio: NDArray[np.float64] = np.median(traced_s.sum(-1) / untraced_s.sum(-1), axis=-1)
    return ratio


def _run_in_process(program_name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a child process with one thread, and return its result."""
    context = get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_send_result, args=(sender, function, args))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        raise RuntimeError(
            f"the process of program {program_name} ended without a result; its output is above"
        ) from error
    finally:
        receiver.close()
        process.join()


def _send_result(pipe: Connection, function: Callable[..., Any], args: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    pipe.send(function(*args))


def _train_and_digest(program: TimedProgram, trace_arguments: _TraceArguments) -> str:
    with nullcontext() if trace_arguments is None else traced(*trace_arguments):
        return weights_digest(program(2 * _UNTIMED_STEPS, lambda: None))


def _time_turns(
    program: TimedProgram,
    trace_arguments: tuple[Path, TraceSettings],
    num_turns: int,
    clock: Callable[[], float],
) -> _ProcessTimes:
    """Train in traced and untraced turns, and return the times.

    Of every four turns, the first and the last are traced. A steady change of the machine's speed
    then cancels out.
    """
    # A short untraced run measures the time of a step, for the number of steps of a turn.
    step_ends_s: list[float] = []
    program(2 * EPOCH_STEPS, lambda: step_ends_s.append(clock()))
    step_s = (step_ends_s[-1] - step_ends_s[0]) / (len(step_ends_s) - 1)
    steps_per_turn = max(round(_TURN_S / step_s / EPOCH_STEPS), 1) * EPOCH_STEPS
    are_traced = [turn % 4 in (0, 3) for turn in range(2 * num_turns)]
    step_s_by_traced: dict[bool, list[float]] = {True: [], False: []}
    # During an untraced turn, ``pause`` contains the context manager that pauses the tracer.
    pause, num_steps, turn_start_s = ExitStack(), 0, 0.0

    def tick() -> None:
        nonlocal num_steps, turn_start_s
        num_steps += 1
        turn, step_in_turn = divmod(num_steps - _UNTIMED_STEPS, steps_per_turn)
        if step_in_turn or turn < 0:
            return
        if turn:
            turn_s = clock() - turn_start_s
            step_s_by_traced[are_traced[turn - 1]].append(turn_s / steps_per_turn)
        else:
            # Events and garbage of the untimed steps do not add to the time of the first turn.
            flush_traces()
            gc.collect()
        pause.close()
        if turn < len(are_traced) and not are_traced[turn]:
            pause.enter_context(paused_traces())
        turn_start_s = clock()

    with traced(*trace_arguments):
        program(_UNTIMED_STEPS + len(are_traced) * steps_per_turn, tick)
    untraced_s, traced_s = np.array(step_s_by_traced[False]), np.array(step_s_by_traced[True])
    return _ProcessTimes(steps_per_turn, untraced_s, traced_s)


def weights_digest(networks: Iterable[nn.Module]) -> str:
    """Return the SHA-256 of the values in the state dictionaries of networks, in their order."""
    digest = hashlib.sha256()
    for network in networks:
        for tensor in network.state_dict().values():
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
