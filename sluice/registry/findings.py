"""Converts errors that a check catches to findings, so that the check can continue."""

from sluice.base.errors import SluiceError
from sluice.registry.records import ProblemKind, RegistryFinding


def finding_from_error(
    model: str, number: int | None, problem: ProblemKind, error: SluiceError
) -> RegistryFinding:
    """Return a finding about a version, or about the model if ``number`` is None."""
    return RegistryFinding(
        model=model,
        version=number if isinstance(number, int) else None,  # SQLite may return text of the column
        problem=problem,
        what=" ".join(part for part in (error.what, error.cause) if part),
        fix=error.fix,
    )
