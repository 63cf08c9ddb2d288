"""Every fault of the benchmark, by its number."""

from sluice.trace.benchmark.case import FaultCase
from sluice.trace.benchmark.faults import order

FAULT_CASES: tuple[FaultCase, ...] = tuple(
    sorted(
        [
            *order.CASES,
        ],
        key=lambda case: case.number,
    )
)
