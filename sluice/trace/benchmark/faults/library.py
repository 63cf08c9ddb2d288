"""Every fault of the benchmark, by its number."""

from sluice.trace.benchmark.case import FaultCase
from sluice.trace.benchmark.faults import data, losses, tokens

FAULT_CASES: tuple[FaultCase, ...] = tuple(
    sorted((*data.CASES, *losses.CASES, *tokens.CASES), key=lambda case: case.number)
)
