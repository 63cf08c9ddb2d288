"""The executor of all jobs: runs all steps in one process, which it records in a run tag."""

import contextlib
import time
from collections.abc import Iterator

import dagster as dg
from dagster._core.errors import raise_execution_interrupts
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor import in_process
from dagster._core.executor.in_process import InProcessExecutor

from sluice.pipelines.instance import close_killed_runs
from sluice.pipelines.run_process import RunProcess

_MAX_WAIT_S = 1.0
"""Maximum time until a step that waits for a concurrency pool reacts to Ctrl-C [s]."""

_KILLED_RUN_CHECK_S = 10.0
"""Interval at which a waiting step frees the slots of killed runs [s]."""


class ProcessRecordingExecutor(InProcessExecutor):
    """Records the executing process in the run's tags before the first step."""

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Record the process, then execute the steps."""
        run_id = plan_context.run_id
        plan_context.instance.add_run_tags(run_id, RunProcess.current(run_id).tags)
        with interruptible_pools():
            yield from super().execute(plan_context, execution_plan)


@contextlib.contextmanager
def interruptible_pools() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a run that waits for a concurrency pool.

    While a run of Dagster's own in-process executor waits, it ignores both signals and uses
    a whole core.
    """
    original_class = in_process.InstanceConcurrencyContext  # type: ignore[attr-defined]
    in_process.InstanceConcurrencyContext = _InterruptiblePools  # type: ignore[attr-defined]
    try:
        yield
    finally:
        in_process.InstanceConcurrencyContext = original_class  # type: ignore[attr-defined]


class _InterruptiblePools(InstanceConcurrencyContext):
    """Claims slots of concurrency pools for steps; a waiting step sleeps and can be interrupted."""

    _next_check_s = 0.0
    """Monotonic time of the next search for killed runs [s]."""

    def claim(self, concurrency_key: str, step_key: str, step_priority: int = 0) -> bool:
        """Claim a slot for a step; return whether a slot was free.

        If not, free the slots of killed runs, at most once in ``_KILLED_RUN_CHECK_S``.
        """
        if super().claim(concurrency_key, step_key, step_priority):
            return True
        if time.monotonic() >= self._next_check_s:
            self._next_check_s = time.monotonic() + _KILLED_RUN_CHECK_S
            close_killed_runs(self._instance)
        return False

    def interval_to_next_pending_claim_check(self) -> float:
        """Return the time to sleep until a slot may be free [s].

        Raises:
            DagsterExecutionInterruptedError: The run was interrupted since the last call.
        """
        with raise_execution_interrupts():
            pass
        waits_s = [float(end_s) - time.time() for end_s in self._pending_timeouts.values()]
        return max(0.0, min([_MAX_WAIT_S, *waits_s]))


@dg.executor(name="in_process")
def one_process(context: dg.InitExecutorContext) -> ProcessRecordingExecutor:
    """Execute all steps of a run in the process of the run."""
    del context
    return ProcessRecordingExecutor(retries=RetryMode.ENABLED)
