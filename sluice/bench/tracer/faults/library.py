"""Every fault of the benchmark, by its number."""

from sluice.bench.tracer.case import FaultCase
from sluice.bench.tracer.faults import data, losses, tokens
from sluice.bench.tracer.faults.checkpoints import CHECKPOINT_CASES
from sluice.bench.tracer.faults.flow import FLOW_CASES
from sluice.bench.tracer.faults.loading import LOADING_CASES
from sluice.bench.tracer.faults.narrow import NARROW_CASES
from sluice.bench.tracer.faults.order import ORDER_CASES
from sluice.bench.tracer.faults.ranks import RANK_CASES
from sluice.bench.tracer.faults.scaling import SCALING_CASES
from sluice.bench.tracer.faults.schedules import SCHEDULE_CASES
from sluice.bench.tracer.faults.sight import SIGHT_CASES

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
