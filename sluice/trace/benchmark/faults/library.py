"""Every fault of the benchmark, by its number."""

from sluice.trace.benchmark.case import FaultCase
from sluice.trace.benchmark.faults import data, losses, tokens
from sluice.trace.benchmark.faults.checkpoints import CHECKPOINT_CASES
from sluice.trace.benchmark.faults.flow import FLOW_CASES
from sluice.trace.benchmark.faults.loading import LOADING_CASES
from sluice.trace.benchmark.faults.narrow import NARROW_CASES
from sluice.trace.benchmark.faults.order import ORDER_CASES
from sluice.trace.benchmark.faults.ranks import RANK_CASES
from sluice.trace.benchmark.faults.scaling import SCALING_CASES
from sluice.trace.benchmark.faults.schedules import SCHEDULE_CASES
from sluice.trace.benchmark.faults.sight import SIGHT_CASES

FAULT_CASES: tuple[FaultCase, ...] = tuple(
    sorted(
        (
            *SIGHT_CASES,
            *FLOW_CASES,
            *NARROW_CASES,
            *LOADING_CASES,
            *ORDER_CASES,
            *RANK_CASES,
            *SCALING_CASES,
            *SCHEDULE_CASES,
            *CHECKPOINT_CASES,
            *data.CASES,
            *losses.CASES,
            *tokens.CASES,
        ),
        key=lambda case: case.number,
    )
)
