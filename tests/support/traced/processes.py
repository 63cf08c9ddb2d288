"""Runs a function in several processes that a fork server starts."""

from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from typing import Any


def run_processes(
    target: Callable[..., None],
    arguments: Iterable[tuple[Any, ...]],
    *,
    preloaded: Sequence[str],
    limit_s: float,
) -> list[int | None]:
    """Run one process for each tuple of arguments; return the exit codes, in this order.

    Args:
        target: Importable function.
        arguments: Arguments of each process.
        preloaded: Modules that the fork server imports once, before it forks.
        limit_s: Time limit of each process [s]. A process that takes longer is killed, and its exit
            code is None.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    processes = [context.Process(target=target, args=args) for args in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(limit_s)
    exit_codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return exit_codes
