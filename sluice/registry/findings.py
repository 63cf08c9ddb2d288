"""From an error that a check met to a finding that it reports."""

from sluice.base.errors import SluiceError
from sluice.registry.records import Finding, Problem


def found(model: str, number: int | None, problem: Problem, error: SluiceError) -> Finding:
    """Return what an error says, as a finding about a version; None means the model."""
    return Finding(
        model=model,
        version=number if isinstance(number, int) else None,  # SQLite keeps text there as well
        problem=problem,
        what=" ".join(part for part in (error.what, error.cause) if part),
        fix=error.fix,
    )
