"""Every fault of the benchmark, by its number."""

from sluice.trace.benchmark.case import FaultCase

FAULT_CASES: tuple[FaultCase, ...] = ()
