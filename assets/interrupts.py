"""Interrupts of searches and trainings, which end their processes and say what is kept."""

from collections.abc import Iterator
from contextlib import contextmanager

from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._utils.interrupts import raise_interrupts_as

from sluice.base.errors import Interrupted


@contextmanager
def stopping_cleanly() -> Iterator[None]:
    """Raise Ctrl-C, SIGTERM and cancellation as ``KeyboardInterrupt`` inside the context.

    Inside a step, Dagster raises its own exception, which searches and trainings do not handle.
    With ``KeyboardInterrupt`` they end their processes and raise ``Interrupted``, which says how
    much work is kept.

    Raises:
        DagsterExecutionInterruptedError: The code raised ``Interrupted``, which is the cause. With
            this class of error, Dagster marks a run that was canceled in its UI as canceled.
    """
    with raise_interrupts_as(KeyboardInterrupt):
        try:
            yield
        except Interrupted as interrupted:
            raise DagsterExecutionInterruptedError from interrupted
