"""All healthy cases of the benchmark, sorted by number."""

from sluice.bench.tracer.case import HealthyCase
from sluice.bench.tracer.healthy import baseline, steps, structure, targets, tokens

HEALTHY_CASES: tuple[HealthyCase, ...] = tuple(
    sorted(
        [*baseline.CASES, *tokens.CASES, *structure.CASES, *targets.CASES, *steps.CASES],
        key=lambda case: case.number,
    )
)
