"""How a job's steps are executed: one after the other in the run's process, which signs the run."""

from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor

from sluice.pipelines.run_process import RunProcess


class SigningExecutor(InProcessExecutor):
    """Notes in the run's tags which process works on it, before its first step."""

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Sign the run, then execute the steps."""
        run_id = plan_context.run_id
        plan_context.instance.add_run_tags(run_id, RunProcess.this(run_id).tags)
        yield from super().execute(plan_context, execution_plan)


@dg.executor(name="in_process")
def one_process(context: dg.InitExecutorContext) -> SigningExecutor:
    """Execute all steps of a run in its own process."""
    del context
    return SigningExecutor(retries=RetryMode.ENABLED)
