"""Every fault of the benchmark, by its number."""

from sluice.trace.benchmark.case import FaultCase
from sluice.trace.benchmark.faults.flow import FLOW_CASES
from sluice.trace.benchmark.faults.narrow import NARROW_CASES
from sluice.trace.benchmark.faults.sight import SIGHT_CASES

FAULT_CASES: tuple[FaultCase, ...] = tuple(
    sorted((*FLOW_CASES, *NARROW_CASES, *SIGHT_CASES), key=lambda case: case.number)
)
