"""Runs calls that may hang, each in its own daemon thread.

An executor is not suitable: Python joins its threads when the process ends, so a call that hangs
would keep the process alive.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def run_in_background(call: Callable[[], T], *, name: str) -> Future[T]:
    """Run a function in its own daemon thread.

    Args:
        call: Function to run.
        name: Name of the thread.

    Returns:
        Future with the result or the exception of the call.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # passed on to the caller
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
