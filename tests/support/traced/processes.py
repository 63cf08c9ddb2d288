"""Runs a function in several processes of a fork server."""

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
    """Run one process for each tuple of arguments; return the exit codes.

    Args:
        target: Importable function.
        arguments: Arguments of each process.
        preloaded: Modules that are imported only once.
        limit_s: Time limit of each process; its exit code is then None, and it is killed [s].
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    processes = [context.Process(target=target, args=args) for args in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(limit_s)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    return codes
