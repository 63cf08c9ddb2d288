"""Calls that may hang, away from the event loop and from the end of the process.

The threads of an executor are waited for when the process ends; a read that hangs would keep it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(call: Callable[[], T], *, name: str) -> Future[T]:
    """Run a call in a thread of its own that the process does not wait for.

    Args:
        call: What to run.
        name: Of the thread.

    Returns:
        What becomes of it: its result, or whatever it raised.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # handed over whole: the caller decides
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
