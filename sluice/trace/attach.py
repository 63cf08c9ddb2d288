"""Attaches the tracer to the current process: around a block of code, or until the process ends.

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
from functools import cache
from multiprocessing import current_process
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path

import torch

from sluice.trace.fast_path import install_fast_path
from sluice.trace.functional.programs import support_functional_programs
from sluice.trace.hooks.backward import watch_backward
from sluice.trace.hooks.checkpoint_files import watch_checkpoint_files
from sluice.trace.hooks.checkpoints import watch_loads
from sluice.trace.hooks.clipping import watch_clipping
from sluice.trace.hooks.data_loaders import watch_loaders
from sluice.trace.hooks.data_parallel import watch_parallel
from sluice.trace.hooks.grad_scaler import watch_scalers
from sluice.trace.hooks.inputs import InputWatch
from sluice.trace.hooks.learning_rates import watch_learning_rates
from sluice.trace.hooks.losses import LossWatch
from sluice.trace.hooks.modules import watch_modules
from sluice.trace.hooks.optimizers import watch_optimizers
from sluice.trace.hooks.schedulers import watch_schedulers
from sluice.trace.nonfinite_guard import install_nonfinite_guard
from sluice.trace.recording.storage import unique_folder
from sluice.trace.records.trace import VERSION, TraceStart
from sluice.trace.sampling.gradient_checks import watch_gradients
from sluice.trace.settings import TraceSettings
from sluice.trace.tracer import Tracer, print_to_stderr
from sluice.trace.tracer_context import TracerContext


def _watch_networks(tracer: TracerContext) -> None:
    """Watch the calls of networks and loss functions."""
    inputs = InputWatch(tracer)
    losses = LossWatch(tracer, inputs)
    watch_modules(tracer)
    # ``support_functional_programs`` subscribes before ``inputs``, because it must report the
    # inputs of networks without a module before ``inputs`` handles the backward pass.
    support_functional_programs(tracer, inputs, losses)
    inputs.subscribe()
    losses.subscribe()


_INSTALLERS = (
    install_fast_path,  # first, so that it can wrap the hooks that the others then install
    _watch_networks,
    watch_gradients,
    watch_backward,
    watch_optimizers,
    watch_clipping,
    watch_scalers,
    watch_schedulers,
    watch_loaders,
    watch_loads,
    watch_checkpoint_files,
    watch_learning_rates,
    watch_parallel,
    install_nonfinite_guard,
)
"""Functions that install the parts of the tracer. Parts that subscribe to the same event receive it
in this order."""

_active_tracers: dict[Tracer, Path] = {}
"""The active tracer of this process and its folder of traces. There is at most one, because patches
apply to the whole process."""


@contextmanager
def traced(
    out: Path,
    settings: TraceSettings,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    print_line: Callable[[str], None] = print_to_stderr,
) -> Iterator[Path]:
    """Trace the training in a ``with`` block, without changing the program or its results.

    Inside another ``traced`` block, the outer trace continues, and this block has no effect.

    Args:
        out: Folder of traces; each process writes its own subfolder.
        settings: Limits of time, memory and disk, and the response to non-finite losses. Only this
            response, which is off by default, changes what the program does.
        clock: Monotonic time [ns].
        print_line: Prints one line for the user, such as the message that tracing stopped.

    Yields:
        The folder of the active trace, which is created at the first write.

    Cost:
        Run ``sluice bench trace`` to measure the cost of a trace.
    """
    outer_tracer = active_tracer()
    if outer_tracer is not None:
        yield outer_tracer.recorder.folder
        return
    tracer = attach(out, settings, environ=os.environ, clock=clock, print_line=print_line)
    try:
        yield tracer.recorder.folder
    except BaseException as error:
        end(tracer, raised=f"{type(error).__name__}: {error}")
        raise
    end(tracer, raised="")


def active_tracer() -> Tracer | None:
    """Return the tracer of this process, or None while nothing is traced."""
    return next(iter(_active_tracers), None)


def attach(
    out: Path,
    settings: TraceSettings,
    *,
    environ: Mapping[str, str],
    clock: Callable[[], int],
    print_line: Callable[[str], None],
) -> Tracer:
    """Trace this process until ``end`` is called. For the arguments, see ``traced``."""
    out = out.resolve()  # the program may change its directory
    tracer = Tracer(
        _process_folder(out),
        settings,
        lambda: _describe_process(environ),
        clock=clock,
        print_line=print_line,
    )
    _active_tracers[tracer] = out
    for install in _INSTALLERS:
        tracer.run_safely(install, tracer)
        if not tracer.is_on:
            break
    _register_fork_callbacks()
    return tracer


def end(tracer: Tracer, *, raised: str) -> None:
    """Write the remaining records and restore everything that was patched.

    Args:
        tracer: Tracer returned by ``attach``.
        raised: Exception that ended the program, such as 'ValueError: ...'; '' without one.
    """
    tracer.end(raised)
    _active_tracers.pop(tracer, None)


@cache
def _register_fork_callbacks() -> None:
    """Trace forked processes, too, as long as a trace is active.

    Registers a callback of ``os`` and one of ``multiprocessing``. Neither can be unregistered, so
    this function is cached and runs once per process.
    """
    os.register_at_fork(after_in_child=_begin_in_child)
    # Use a callback of multiprocessing, too: the processes that multiprocessing forks run no atexit
    # callbacks. The callback ends when the first argument is deleted, so the argument is a function
    # of this module, which is never deleted.
    register_after_fork(_begin_in_child, lambda _: _register_exit_callback())


def _begin_in_child() -> None:
    """Give a forked process its own trace, which is written only if the process trains."""
    for tracer, out in _active_tracers.items():
        if tracer.is_on:
            tracer.recorder.close()
            tracer.run_safely(tracer.begin, _process_folder(out))


def _register_exit_callback() -> None:
    """Make a forked multiprocessing process write its remaining records when it exits."""
    tracers = [tracer for tracer in _active_tracers if tracer.is_on]
    if not tracers:
        return
    process, error_texts = current_process(), []
    original_run = process.run

    def run() -> None:
        try:
            original_run()
        except BaseException as error:
            error_texts.append(f"{type(error).__name__}: {error}")
            raise

    def end_traces() -> None:
        for tracer in tracers:
            tracer.end_process(error_texts[0] if error_texts else "")

    # ``run`` keeps the text of the exception for ``end_traces``: since Python 3.13,
    # ``sys.exception()`` is None when finalizers run.
    process.run = run  # type: ignore[method-assign]
    Finalize(None, end_traces, exitpriority=0)


def _process_folder(out: Path) -> Path:
    return unique_folder(out, f"pid{os.getpid()}")


def _describe_process(environ: Mapping[str, str]) -> TraceStart:
    rank, world_size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return TraceStart(
        version=VERSION,
        program=tuple(sys.argv),
        pid=os.getpid(),
        rank=rank,
        world_size=world_size,
        torch=str(torch.__version__),
        began=time.time(),
    )


def flush_traces() -> None:
    """Write all buffered records now, instead of at the next regular flush."""
    for tracer in _active_tracers:
        tracer.run_safely(tracer.steps.flush)


@contextmanager
def paused_traces() -> Iterator[None]:
    """Undo all patches in the block, so that nothing in it is traced or slowed down."""
    with ExitStack() as stack:
        for tracer in _active_tracers:
            stack.enter_context(tracer.patches.paused())
        yield
