"""Attaches the tracer to the process it runs in: around a loop, or for good.

::

    with traced(Path("traces"), TraceSettings()) as folder:
        train(model, loader)
    trace = read_trace(folder)
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import current_process
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path

import torch

from sluice.trace.evidence.trace import VERSION, Start
from sluice.trace.guarding import watch_losses_that_are_not_finite
from sluice.trace.seams.backward import watch_backward
from sluice.trace.seams.bare_judged import watch_bare
from sluice.trace.seams.by_hand import watch_losses_by_hand
from sluice.trace.seams.checkpoints import watch_loads
from sluice.trace.seams.clipping import watch_clipping
from sluice.trace.seams.inputs import watch_inputs
from sluice.trace.seams.loading import watch_loaders
from sluice.trace.seams.losses import watch_losses
from sluice.trace.seams.modules import watch_modules
from sluice.trace.seams.optimizers import watch_optimizers
from sluice.trace.seams.own_steps import watch_own_steps
from sluice.trace.seams.parallel import watch_parallel
from sluice.trace.seams.rates import watch_rates
from sluice.trace.seams.saving import watch_saves
from sluice.trace.seams.scaling import watch_scalers
from sluice.trace.seams.schedulers import watch_schedulers
from sluice.trace.settings import TraceSettings
from sluice.trace.storage import unused_folder
from sluice.trace.tracer import Tracer, say_on_stderr

_SEAMS = (
    watch_inputs,
    watch_losses,
    watch_losses_by_hand,
    watch_bare,
    watch_modules,
    watch_backward,
    watch_own_steps,
    watch_optimizers,
    watch_clipping,
    watch_scalers,
    watch_schedulers,
    watch_loaders,
    watch_loads,
    watch_saves,
    watch_rates,
    watch_parallel,
    watch_losses_that_are_not_finite,
)

_active: list[Tracer] = []
"""The tracer of this process, or none: what it replaces is the whole process's."""


@contextmanager
def traced(
    out: Path,
    settings: TraceSettings,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    say: Callable[[str], None] = say_on_stderr,
) -> Iterator[Path]:
    """Record what a loop does, without any change to it or to what it computes.

    Inside another trace, that one goes on and nothing else happens.

    Args:
        out: Folder of traces; each process gets a folder of its own in it.
        settings: Bounds of time, memory and disk.
        clock: Monotonic time [ns].
        say: Takes one line for the user, such as that tracing stopped.

    Yields:
        The folder of this trace. It is made with the first event.

    Cost:
        See ``sluice.bench.tracer.overhead``.
    """
    if _active:
        yield _active[-1].recorder.folder
        return
    tracer = attach(out, settings, environ=os.environ, clock=clock, say=say)
    try:
        yield tracer.recorder.folder
    except BaseException as error:
        end(tracer, raised=f"{type(error).__name__}: {error}")
        raise
    end(tracer, raised="")


def attach(
    out: Path,
    settings: TraceSettings,
    *,
    environ: Mapping[str, str],
    clock: Callable[[], int],
    say: Callable[[str], None],
) -> Tracer:
    """Begin to trace this process until ``end``."""
    out = out.resolve()  # the program may change its directory
    tracer = Tracer(_own_folder(out), settings, lambda: _describe(environ), clock=clock, say=say)
    _active.append(tracer)
    for watch in _SEAMS:
        tracer.guard(watch, tracer)
        if not tracer.is_on:
            break
    tracer.guard(_watch_forks, tracer, out)
    return tracer


def end(tracer: Tracer, *, raised: str) -> None:
    """Write what is left, put everything back.

    Args:
        tracer: As ``attach`` gave it.
        raised: What ended the program, as 'ValueError: ...'; '' for nothing.
    """
    tracer.end(raised)
    if tracer in _active:
        _active.remove(tracer)


def _watch_forks(tracer: Tracer, out: Path) -> None:
    """Let a forked process have a trace of its own; it writes one only if it trains."""

    def in_child() -> None:
        if tracer.is_on:
            tracer.recorder.close()
            tracer.guard(tracer.begin, _own_folder(out))

    # There is no way to take these back: they do nothing once the tracer is off.
    os.register_at_fork(after_in_child=in_child)
    # A process of multiprocessing that was forked ends without atexit.
    register_after_fork(tracer, _leave_at_end)


def _leave_at_end(tracer: Tracer) -> None:
    process, raised = current_process(), []
    original = process.run

    def run() -> None:
        try:
            original()
        except BaseException as error:
            raised.append(f"{type(error).__name__}: {error}")
            raise

    # From Python 3.13 on, finalizers run after the exception was handled: sys.exception() is None.
    process.run = run  # type: ignore[method-assign]
    Finalize(None, lambda: tracer.leave(raised[0] if raised else ""), exitpriority=0)


def _own_folder(out: Path) -> Path:
    return unused_folder(out, f"pid{os.getpid()}")


def _describe(environ: Mapping[str, str]) -> Start:
    rank, size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return Start(
        version=VERSION,
        program=tuple(sys.argv),
        pid=os.getpid(),
        rank=rank,
        world_size=size,
        torch=str(torch.__version__),
        began=time.time(),
    )


def flush_traces() -> None:
    """Write what was seen so far, instead of in the next seconds."""
    for tracer in _active:
        tracer.guard(tracer.flush)


@contextmanager
def paused_traces() -> Iterator[None]:
    """See nothing for a while, at the cost of nothing: every seam is as torch made it."""
    with ExitStack() as stack:
        for tracer in _active:
            stack.enter_context(tracer.patches.paused())
        yield
