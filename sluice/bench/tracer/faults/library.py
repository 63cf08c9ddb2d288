"""All fault cases of the benchmark, sorted by number."""

from sluice.bench.tracer.case import FaultCase
from sluice.bench.tracer.faults import data, losses, tokens
from sluice.bench.tracer.faults.call_order import CALL_ORDER_CASES
from sluice.bench.tracer.faults.checkpoints import CHECKPOINT_CASES
from sluice.bench.tracer.faults.loading import LOADING_CASES
from sluice.bench.tracer.faults.masks import MASK_CASES
from sluice.bench.tracer.faults.numerics import NUMERIC_CASES
from sluice.bench.tracer.faults.ranks import RANK_CASES
from sluice.bench.tracer.faults.scaling import SCALING_CASES
from sluice.bench.tracer.faults.schedules import SCHEDULE_CASES
from sluice.bench.tracer.faults.structure import STRUCTURE_CASES

FAULT_CASES: tuple[FaultCase, ...] = tuple(
    sorted(
        (
            *MASK_CASES,
            *STRUCTURE_CASES,
            *NUMERIC_CASES,
            *LOADING_CASES,
            *CALL_ORDER_CASES,
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
