"""The executor of all jobs: runs the steps in sequence in one process, recorded in a run tag."""

from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor

from sluice.pipelines.run_process import RunProcess


class SigningExecutor(InProcessExecutor):
    """Records the executing process in the run's tags before the first step."""

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Record the process, then execute the steps."""
        run_id = plan_context.run_id
        plan_context.instance.add_run_tags(run_id, RunProcess.this(run_id).tags)
        yield from super().execute(plan_context, execution_plan)


@dg.executor(name="in_process")
def one_process(context: dg.InitExecutorContext) -> SigningExecutor:
    """Execute all steps of a run in the process of the run."""
    del context
    return SigningExecutor(retries=RetryMode.ENABLED)
